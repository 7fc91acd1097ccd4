"""Every error Bough raises, and what to do about it.

    BoughError
    ├── NotFound                no such session here (or it is another tenant's)
    ├── StaleLeaf               the leaf moved; nothing was written
    ├── Fenced                  a later runner took the session over; nothing was written
    │   └── ClaimLost           a task that another worker has now; nothing was written
    ├── SessionRunning                 the session is being driven; its leaf may not be moved
    ├── SessionTrashed                 the session is in the trash
    │   └── TaskTrashed         … and another waits for it
    ├── NotTrashed              purge wants the trash first
    ├── IdTaken                 that session id holds another history
    │   └── IdConflict             what is to be taken in has an id that holds other content here
    ├── UnknownImporter             sessions of another program that cannot be read
    ├── InvalidSource               a place that holds no sessions of the tool that was named
    ├── InvalidBundle               a file that is no bundle, or not a whole one; nothing was changed
    ├── PageTooLarge            more than one HTML file should hold; nothing was written
    ├── InvalidOperation               the entry may not stand here
    │   ├── OpenBatch           tool calls wait for their results
    │   ├── OrphanResult        a result without its call
    │   ├── InvalidMessage          a role with parts it cannot have, an unknown kind or role
    │   ├── InvalidPosition            no such place on this path
    │   ├── NothingToRedo       no branch was left behind
    │   ├── ToolsNotAllowed             tools a session may not use from here on
    │   ├── SessionIsReplay            a replay is looked at or forked, not driven on
    │   └── InvalidReplay           a replay that cannot be made as it was asked for
    ├── InvalidValue                a value no store can keep unchanged
    │   ├── NotJson             NaN, a non-string key, an object JSON does not know
    │   ├── NotText             something else where a text belongs
    │   ├── InvalidText             a lone surrogate, or a NUL where a plain column stands
    │   ├── InvalidCount            usage that is no count of tokens or money
    │   ├── InvalidArgument            a question that makes no sense
    │   ├── WrongSpace          a question about a space this store was not opened for
    │   ├── SecretTooShort         a secret too short to be hidden
    │   └── InvalidSearch           a search that cannot be understood
    ├── MissingBlob             a media handle without its bytes
    ├── InvalidSummary              a summary that is empty or longer than what it replaces
    ├── TurnTooLarge                the newest turn alone exceeds the budget
    ├── UnknownProvider         no projection of that name
    ├── ModelError              a model gave no answer
    │   ├── Overloaded          too busy, unreachable or broken for now: try again later
    │   ├── ContextOverflow            the history is too long for it
    │   ├── TruncatedReply              the answer ended in the middle
    │   └── ModelUnavailable             no such model, no key, or its SDK is not installed
    ├── UnrecognizedReply             not a reply of a provider we know
    ├── OutOfScope              a path, command or address the workspace does not allow
    ├── TokenRequired               a server that others could reach without a token
    ├── InvalidTool                 a function that cannot be a tool
    ├── UnknownAgent            a worker was given no agent of that name
    ├── LimitReached            an input past a limit; it was not stored
    ├── TurnFailed              a task's turn got no answer; Absurd tries it again
    ├── SessionRewound               a task whose session was moved back behind its steps
    └── StoreError              the file or server itself
        ├── NotAStore          not a Bough store
        ├── NewerFormat         written by a newer Bough
        ├── ServerUnreachable            the database server cannot be reached
        ├── MigrationNeeded            the database has no schema of ours, or an older one
        ├── MissingPermission            the role may not do this
        ├── PostgresRequired       an engine that needs PostgreSQL
        ├── EngineNotInstalled            the database lacks the engine's schema or queue
        ├── UnknownCommit           the server went away in mid-commit and has not come back
        ├── InvalidKey              a key that is none
        ├── EncryptionUnavailable            a key, and a SQLite that cannot encrypt
        ├── StoreReadOnly            no right to write
        ├── StoreFull           the disk took no more; nothing was written
        ├── IndexBehind         what is new cannot be indexed, so a search would miss it
        ├── StoreDamaged             the database file is not whole
        └── StoreClosed         used after close

Constructors take data, the message is made here: what happened, with the values, and what to do next.
"""

from __future__ import annotations

from .exchange import IdConflict, InvalidBundle, InvalidSource, PageTooLarge, UnknownImporter
from .laws import (
    InvalidMessage,
    InvalidOperation,
    InvalidPosition,
    InvalidReplay,
    NothingToRedo,
    OpenBatch,
    OrphanResult,
    SessionIsReplay,
    ToolsNotAllowed,
)
from .root import BoughError
from .running import (
    ContextOverflow,
    InvalidTool,
    LimitReached,
    ModelError,
    ModelUnavailable,
    OutOfScope,
    Overloaded,
    SessionRewound,
    TokenRequired,
    TruncatedReply,
    TurnFailed,
    UnknownAgent,
    UnknownProvider,
    UnrecognizedReply,
)
from .sessions import (
    ClaimLost,
    Fenced,
    IdTaken,
    NotFound,
    NotTrashed,
    SessionRunning,
    SessionTrashed,
    StaleLeaf,
    TaskTrashed,
)
from .stores import (
    EncryptionUnavailable,
    EngineNotInstalled,
    IndexBehind,
    InvalidKey,
    MigrationNeeded,
    MissingPermission,
    NewerFormat,
    NotAStore,
    PostgresRequired,
    ServerUnreachable,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    UnknownCommit,
)
from .values import (
    InvalidArgument,
    InvalidCount,
    InvalidSearch,
    InvalidSummary,
    InvalidText,
    InvalidValue,
    MissingBlob,
    NotJson,
    NotText,
    SecretTooShort,
    TurnTooLarge,
    WrongSpace,
)

__all__ = [
    "InvalidBundle",
    "InvalidSource",
    "InvalidCount",
    "InvalidKey",
    "InvalidMessage",
    "InvalidPosition",
    "InvalidArgument",
    "InvalidReplay",
    "InvalidSearch",
    "InvalidSummary",
    "InvalidText",
    "InvalidTool",
    "InvalidValue",
    "BoughError",
    "ClaimLost",
    "TruncatedReply",
    "StoreDamaged",
    "Fenced",
    "IdConflict",
    "IdTaken",
    "IndexBehind",
    "SessionIsReplay",
    "InvalidOperation",
    "LimitReached",
    "MissingBlob",
    "ModelError",
    "NewerFormat",
    "EncryptionUnavailable",
    "EngineNotInstalled",
    "ModelUnavailable",
    "MissingPermission",
    "MigrationNeeded",
    "ServerUnreachable",
    "UnrecognizedReply",
    "NotFound",
    "NotJson",
    "PostgresRequired",
    "NotText",
    "NotTrashed",
    "NothingToRedo",
    "OpenBatch",
    "OrphanResult",
    "WrongSpace",
    "OutOfScope",
    "ContextOverflow",
    "Overloaded",
    "PageTooLarge",
    "StoreReadOnly",
    "SessionRunning",
    "SecretTooShort",
    "StaleLeaf",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "SessionRewound",
    "TurnTooLarge",
    "TaskTrashed",
    "SessionTrashed",
    "TurnFailed",
    "TokenRequired",
    "UnknownAgent",
    "UnknownProvider",
    "UnknownImporter",
    "UnknownCommit",
    "ToolsNotAllowed",
    "NotAStore",
]
