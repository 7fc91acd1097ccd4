"""Every error Bough raises, and what to do about it.

    BoughError
    ├── NotFound                no such session here (or it is another tenant's)
    ├── StaleLeaf               the leaf moved; nothing was written
    ├── Fenced                  a later runner took the session over; nothing was written
    │   └── ClaimLost           a task that another worker has now; nothing was written
    ├── Running                 the session is being driven; its leaf may not be moved
    ├── Trashed                 the session is in the trash
    │   └── TaskTrashed         … and another waits for it
    ├── NotTrashed              purge wants the trash first
    ├── IdTaken                 that session id holds another history
    │   └── IdClash             what is to be taken in has an id that holds other content here
    ├── UnknownTool             sessions of another program that cannot be read
    ├── BadSource               a place that holds no sessions of the tool that was named
    ├── BadBundle               a file that is no bundle, or not a whole one; nothing was changed
    ├── PageTooLarge            more than one HTML file should hold; nothing was written
    ├── InvalidOperation               the entry may not stand here
    │   ├── OpenBatch           tool calls wait for their results
    │   ├── OrphanResult        a result without its call
    │   ├── BadMessage          a role with parts it cannot have, an unknown kind or role
    │   ├── InvalidPosition            no such place on this path
    │   ├── NothingToRedo       no branch was left behind
    │   ├── ToolsNotAllowed             tools a session may not use from here on
    │   ├── IsReplay            a replay is looked at or forked, not driven on
    │   └── BadReplay           a replay that cannot be made as it was asked for
    ├── BadValue                a value no store can keep unchanged
    │   ├── NotJson             NaN, a non-string key, an object JSON does not know
    │   ├── NotText             something else where a text belongs
    │   ├── BadText             a lone surrogate, or a NUL where a plain column stands
    │   ├── BadCount            usage that is no count of tokens or money
    │   ├── BadQuery            a question that makes no sense
    │   ├── OtherSpace          a question about a space this store was not opened for
    │   ├── ShortSecret         a secret too short to be hidden
    │   └── BadSearch           a search that cannot be understood
    ├── MissingBlob             a media handle without its bytes
    ├── BadSummary              a summary that is empty or longer than what it replaces
    ├── TooLarge                the newest turn alone exceeds the budget
    ├── UnknownProvider         no projection of that name
    ├── ModelError              a model gave no answer
    │   ├── Overloaded          too busy, unreachable or broken for now: try again later
    │   ├── Overflow            the history is too long for it
    │   ├── CutOff              the answer ended in the middle
    │   └── NoModel             no such model, no key, or its SDK is not installed
    ├── UnrecognizedReply             not a reply of a provider we know
    ├── OutOfScope              a path, command or address the workspace does not allow
    ├── Unguarded               a server that others could reach without a token
    ├── BadTool                 a function that cannot be a tool
    ├── UnknownAgent            a worker was given no agent of that name
    ├── LimitReached            an input past a limit; it was not stored
    ├── TurnFailed              a task's turn got no answer; Absurd tries it again
    ├── StrayTask               a task whose session was moved back behind its steps
    └── StoreError              the file or server itself
        ├── WrongStore          not a Bough store
        ├── NewerFormat         written by a newer Bough
        ├── NoServer            the database server cannot be reached
        ├── NoSchema            the database has no schema of ours, or an older one
        ├── NoRights            the role may not do this
        ├── NotOnPostgres       an engine that needs PostgreSQL
        ├── NoEngine            the database lacks the engine's schema or queue
        ├── Unsettled           the server went away in mid-commit and has not come back
        ├── BadKey              a key that is none
        ├── NoCipher            a key, and a SQLite that cannot encrypt
        ├── ReadOnly            no right to write
        ├── StoreFull           the disk took no more; nothing was written
        ├── IndexBehind         what is new cannot be indexed, so a search would miss it
        ├── Damaged             the database file is not whole
        └── StoreClosed         used after close

Constructors take data, the message is made here: what happened, with the values, and what to do next.
"""

from __future__ import annotations

from .exchange import BadBundle, BadSource, IdClash, PageTooLarge, UnknownTool
from .laws import (
    BadMessage,
    BadReplay,
    InvalidOperation,
    InvalidPosition,
    IsReplay,
    NothingToRedo,
    OpenBatch,
    OrphanResult,
    ToolsNotAllowed,
)
from .root import BoughError
from .running import (
    BadTool,
    CutOff,
    LimitReached,
    ModelError,
    NoModel,
    OutOfScope,
    Overflow,
    Overloaded,
    StrayTask,
    TurnFailed,
    Unguarded,
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
    Running,
    StaleLeaf,
    TaskTrashed,
    Trashed,
)
from .stores import (
    BadKey,
    Damaged,
    IndexBehind,
    NewerFormat,
    NoCipher,
    NoEngine,
    NoRights,
    NoSchema,
    NoServer,
    NotOnPostgres,
    ReadOnly,
    StoreClosed,
    StoreError,
    StoreFull,
    Unsettled,
    WrongStore,
)
from .values import (
    BadCount,
    BadQuery,
    BadSearch,
    BadSummary,
    BadText,
    BadValue,
    MissingBlob,
    NotJson,
    NotText,
    OtherSpace,
    ShortSecret,
    TooLarge,
)

__all__ = [
    "BadBundle",
    "BadSource",
    "BadCount",
    "BadKey",
    "BadMessage",
    "InvalidPosition",
    "BadQuery",
    "BadReplay",
    "BadSearch",
    "BadSummary",
    "BadText",
    "BadTool",
    "BadValue",
    "BoughError",
    "ClaimLost",
    "CutOff",
    "Damaged",
    "Fenced",
    "IdClash",
    "IdTaken",
    "IndexBehind",
    "IsReplay",
    "InvalidOperation",
    "LimitReached",
    "MissingBlob",
    "ModelError",
    "NewerFormat",
    "NoCipher",
    "NoEngine",
    "NoModel",
    "NoRights",
    "NoSchema",
    "NoServer",
    "UnrecognizedReply",
    "NotFound",
    "NotJson",
    "NotOnPostgres",
    "NotText",
    "NotTrashed",
    "NothingToRedo",
    "OpenBatch",
    "OrphanResult",
    "OtherSpace",
    "OutOfScope",
    "Overflow",
    "Overloaded",
    "PageTooLarge",
    "ReadOnly",
    "Running",
    "ShortSecret",
    "StaleLeaf",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StrayTask",
    "TooLarge",
    "TaskTrashed",
    "Trashed",
    "TurnFailed",
    "Unguarded",
    "UnknownAgent",
    "UnknownProvider",
    "UnknownTool",
    "Unsettled",
    "ToolsNotAllowed",
    "WrongStore",
]
