-- Bough's PostgreSQL schema, as of version 1. PostgreSQL 15 or newer, no extension.
--
-- The same tables as in the schema of SQLite, whose introduction applies here, too. The differences, and why:
-- - Everything is in the schema `bough`, which its owner creates with `bough migrate`, never the store.
-- - Keys are pairs, (branch, seq) and (session_no, n): an append touches one index per table.
-- - `space` and `owner` are repeated on every row that belongs to a session, so that a policy is a plain comparison
--   and a table can be partitioned by space.
-- - The store writes a step as one statement. Its compare and swap is the `where` of the update of `session`.
-- - An append checks no foreign key: each would cost a lock and an index probe per row.
--
-- Bodies are JSON bytes exactly as hashed; convert_from(body, 'UTF8') shows them. Times are microseconds, UTC.

create sequence session_no;
create sequence branch_id;

create table session (
    no                  bigint primary key default nextval('bough.session_no'), -- never reused
    id                  text collate "C" not null unique,
    space               text collate "C" not null,         -- tenant; every policy compares it
    owner               text collate "C",                  -- user within the space; null: belongs to the space
    conversation_id     text collate "C" not null,
    agent               text,
    title               text,
    status              text not null,                     -- a cache of the journal
    relation            text,
    parent_session      text collate "C",                  -- an id without a foreign key: the parent may be purged
    parent_seq          bigint,
    trigger_type        text,
    trigger_id          text,
    model               text,
    context_window      bigint,
    tool_names          text,                              -- JSON array
    branch              bigint not null,                   -- the leaf: compared and swapped by every append
    seq                 bigint not null,
    seed_count          bigint not null,
    turns               bigint not null,
    calls               bigint not null,                   -- totals of its own usage rows
    input_tokens        bigint not null,
    output_tokens       bigint not null,
    cache_read_tokens   bigint not null,
    cache_write_tokens  bigint not null,
    cost_microcents     bigint not null,
    unpriced_calls      bigint not null,
    unknown_calls       bigint not null,
    facts               bigint not null,                   -- length of the journal
    fence               bigint not null,
    holder              text,
    lease_until         bigint,
    tags                jsonb,                             -- strings by name, in no order
    started_at          bigint not null,
    updated_at          bigint not null,
    completed_at        bigint,
    trashed_at          bigint,
    error               text
) with (fillfactor = 70); -- every append rewrites the row: with free space on its page no index is touched
create index session_by_conversation on session (space, conversation_id, no);
create index session_by_space on session (space, no);
create index session_by_parent on session (parent_session) where parent_session is not null;
-- For the public's access to a session: by owner, then by id. Its collation differs from the column's, so that the
-- unique index of ids cannot be used instead: it would read rows of other owners, and the number of pages would show.
create index session_by_owner on session (space, owner, id collate "POSIX");

create table session_detail (
    no        bigint primary key references session (no),
    space     text collate "C" not null,
    spec      text,
    policy    text,
    workspace text,
    state     text
);

create table draft (
    no     bigint primary key references session (no),
    space  text collate "C" not null,
    branch bigint not null,
    seq    bigint not null,
    fence  bigint not null,
    text   bytea not null,    -- UTF-8; an answer in flight may contain a NUL, which text refuses
    at     bigint not null
);

create table branch (
    id         bigint primary key default nextval('bough.branch_id'),
    space      text collate "C" not null,
    session_no bigint not null,  -- no foreign key: a branch outlives its purged session while a fork needs it
    parent     bigint references branch (id),
    parent_seq bigint not null
);
create index branch_by_session on branch (session_no);
create index branch_by_parent on branch (parent) where parent is not null;

create table entry (
    branch   bigint not null,
    seq      bigint not null,
    space    text collate "C" not null,
    owner    text collate "C",
    turn     bigint not null,
    step     bigint not null,
    kind     text,               -- null: message
    role     text,
    internal boolean not null,
    model    text,
    finish   text,
    entry_id bytea not null,
    at       bigint not null,
    evidence bytea,
    body     bytea not null,     -- measured: text loads 1.2 times slower, jsonb 2 times, and reorders
    primary key (branch, seq)
);
create index entry_public on entry (branch, seq) where not internal;
create index entry_non_message on entry (branch, seq) where kind is not null;

create table usage (
    session_no         bigint not null,
    n                  bigint not null,
    space              text collate "C" not null,
    owner              text collate "C",
    call_id            text not null,
    branch             bigint not null,
    after_seq          bigint not null,
    answer_seq         bigint,
    purpose            text,
    bucket             text,
    provider           text,
    model              text,
    input_tokens       bigint,
    output_tokens      bigint,
    cache_read_tokens  bigint,
    cache_write_tokens bigint,
    cost_microcents    bigint,
    price_version      text,
    failed             boolean not null,
    at                 bigint not null,
    primary key (session_no, n)
);

create table journal (
    session_no bigint not null,
    n          bigint not null,
    space      text collate "C" not null,
    owner      text collate "C",
    kind       text not null,
    key        text,
    branch     bigint,
    first      bigint,
    last       bigint,
    data       text,
    at         bigint not null,
    primary key (session_no, n)
);

create index journal_key on journal (session_no, key) where left(key, 1) <> '~';

create table inbox (
    no    bigint not null references session (no),
    n     bigint not null,
    space text collate "C" not null,
    owner text collate "C",
    key   text,               -- of the writer, so that an enqueue whose answer was lost is not repeated
    body  bytea not null,     -- a user message, as JSON
    at    bigint not null,
    primary key (no, n)
);

create table blob (
    no    bigint primary key generated always as identity,
    space text collate "C" not null,
    hash  text collate "C" not null,
    mime  text not null,
    size  bigint not null,
    at    bigint not null,
    bytes bytea not null,
    unique (space, hash)
);
alter table blob alter column bytes set storage external; -- images do not compress, and parts of it are read
create table blob_use (
    branch  bigint not null,
    seq     bigint not null,
    blob_no bigint not null references blob (no), -- deleting a blob waits for a transaction that has just used it
    space   text collate "C" not null,
    primary key (branch, seq, blob_no)
);
create index blob_use_by_blob on blob_use (blob_no);

-- The search index: words without text or order, each with a letter for its column. It yields candidates, which are
-- read and compared as in any other store. An entry too large for a tsvector is always a candidate.
create table search (
    place      bigint primary key,  -- branch << 32 | seq; seq 0 of a first branch: the session's title
    space      text collate "C" not null,
    session_no bigint not null,     -- reported as the match: the entry's session or, after its purge, the oldest fork that needs the entry
    at         bigint not null,
    words      tsvector not null
);
create index search_by_word on search using gin (words);
create table search_mark (
    no    bigint primary key,
    space text collate "C" not null,
    facts bigint not null,
    title text
);

-- Rows to lock, without content, for operations that must exclude each other. Not advisory locks: every login can take
-- those, and can see others take them.
create table lock (
    n integer primary key
);

-- A login with a row here is that owner, whatever it sets; any other is the owner that its settings name.
create table login (
    role  regrole primary key,
    space text collate "C" not null check (space <> ''),
    owner text collate "C" not null check (owner <> '')
);

-- The part of an entry that the public may read: its text, without reasoning, calls or handles. A NUL is shown as
-- U+FFFD. The function's body is parsed when it is created: no setting of the caller changes what its strings mean.
create function text_of(body bytea) returns text
language sql immutable strict parallel safe return (
    select coalesce(string_agg(part ->> 'text', '' order by place), '')
    from json_array_elements(
        regexp_replace(convert_from(body, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json -> 'parts'
    ) with ordinality as parts (part, place)
    where part ->> 'type' = 'text'
);

-- For people: each message of each session's active path, exactly once, in the current space.
create view active_message with (security_invoker = true) as
with recursive line (no, branch, last) as (
    select no, branch, seq from bough.session where trashed_at is null
    union all
    select line.no, branch.parent, least(line.last, branch.parent_seq)
    from line join bough.branch on branch.id = line.branch
    where branch.parent is not null
)
select session.id as session_id, entry.seq, entry.turn, entry.step, entry.role,
       bough.text_of(entry.body) as text, entry.internal, entry.model, entry.finish, entry.at,
       convert_from(entry.body, 'UTF8') as body
from line
join bough.session on session.no = line.no
join bough.branch on branch.id = line.branch
join bough.entry on entry.branch = line.branch and entry.seq > branch.parent_seq and entry.seq <= line.last
where entry.kind is null;
