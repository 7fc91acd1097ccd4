-- Oakleaf's PostgreSQL schema, version 1. PostgreSQL 15 or newer, no extension.
--
-- The same tables as in the schema of SQLite, whose introduction applies here, too. The differences, and why:
-- - Everything is in the schema `oakleaf`, which its owner creates with `oakleaf migrate`, never the store.
-- - Keys are pairs, (branch, seq) and (session_number, number): an append touches one index per table.
-- - `space` and `owner` are repeated on every row that belongs to a session, so that a policy is a plain comparison
--   and a table can be partitioned by space.
-- - The store writes a step as one statement. Its compare and swap is the `where` of the update of `session`.
-- - An append checks no foreign key: each would cost a lock and an index probe per row.
--
-- Bodies are JSON bytes exactly as hashed; convert_from(body, 'UTF8') shows them. Times are microseconds, UTC.

create sequence oakleaf.session_number;
create sequence oakleaf.branch_id;

create table oakleaf.session (
    number              bigint primary key default nextval('oakleaf.session_number'), -- never reused
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
    error               text,
    imported_facts      bigint not null,                   -- facts up to this one came with an import
    active_at           bigint not null,                   -- lists are sorted by it: the last input or move of the leaf, and within a run the last step to a minute; a step that does not change it leaves every index alone
    needs_indexing      boolean not null default true      -- it may have text that the search index lacks; an append sets it, whoever indexes the session clears it. A flag, because comparing each session with its search_progress reads all of them for every search
) with (fillfactor = 70); -- every append rewrites the row: with free space on its page no index is touched
create index session_by_conversation on oakleaf.session (space, conversation_id, number);
create index session_by_space on oakleaf.session (space, number);
create index session_by_parent on oakleaf.session (parent_session) where parent_session is not null;
-- For the public's access to a session: by owner, then by id. Its collation differs from the column's, so that the
-- unique index of ids cannot be used instead: it would read rows of other owners, and the number of pages would show.
create index session_by_owner on oakleaf.session (space, owner, id collate "POSIX");
-- For the lists people ask for, each in the order of last activity. A count by status reads nothing else.
create index session_by_activity on oakleaf.session (space, active_at, number);
create index session_by_status on oakleaf.session (space, status, active_at, number) where trashed_at is null;
create index session_by_agent on oakleaf.session (space, agent, active_at, number) where agent is not null;
create index session_by_model on oakleaf.session (space, model, active_at, number) where model is not null;
create index session_by_relation on oakleaf.session (space, relation, active_at, number) where relation is not null;
create index session_by_start on oakleaf.session (space, started_at);
create index session_by_id on oakleaf.session (space, id); -- for the beginning of an id: the unique index has those of all spaces
create index session_by_owner_activity on oakleaf.session (space, owner, active_at, number) where owner is not null;
create index session_in_trash on oakleaf.session (space, active_at, number) where trashed_at is not null;
create index session_needs_indexing on oakleaf.session (space, number) where needs_indexing;

-- A row for each tag of each session, in both orders of lists, and one for its title. The tag is a hash of its name and value,
-- which may be longer than an index allows; lists compare the tags and titles themselves as well.
create table oakleaf.session_tag (
    space          text collate "C" not null,
    tag_hash       bytea not null,
    session_number bigint not null,
    active_at      bigint not null,
    primary key (space, tag_hash, session_number)
);
create index session_tag_by_activity on oakleaf.session_tag (space, tag_hash, active_at, session_number);
create function oakleaf.tag_hash(name text, value text) returns bytea
language sql immutable strict parallel safe
return substring(sha256(convert_to(name || U&'\001f' || value, 'UTF8')) for 16);

-- Triggers keep the tags, the title among them, and the flag in step, whoever writes. `when` costs an append nothing to speak of.
create function oakleaf.sync_session() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    before jsonb;
    after  jsonb;
begin
    if tg_op <> 'INSERT' then
        before := coalesce(old.tags, '{}') || jsonb_strip_nulls(jsonb_build_object(U&'\001ftitle', old.title));
    end if;
    if tg_op <> 'DELETE' then
        after := coalesce(new.tags, '{}') || jsonb_strip_nulls(jsonb_build_object(U&'\001ftitle', new.title));
    end if;
    if tg_op = 'UPDATE' then
        if new.facts <> old.facts and not new.needs_indexing then
            update oakleaf.session set needs_indexing = true where number = new.number;
        end if;
        if after = before then
            update oakleaf.session_tag set active_at = new.active_at
            from jsonb_each_text(after) as pair
            where session_tag.space = new.space and session_tag.tag_hash = oakleaf.tag_hash(pair.key, pair.value)
              and session_tag.session_number = new.number and session_tag.active_at <> new.active_at;
            return null;
        end if;
    end if;
    if tg_op <> 'INSERT' then
        delete from oakleaf.session_tag using jsonb_each_text(before) as pair
        where session_tag.space = old.space and session_tag.tag_hash = oakleaf.tag_hash(pair.key, pair.value)
          and session_tag.session_number = old.number;
    end if;
    if tg_op <> 'DELETE' then
        insert into oakleaf.session_tag (space, tag_hash, session_number, active_at)
        select new.space, oakleaf.tag_hash(pair.key, pair.value), new.number, new.active_at
        from jsonb_each_text(after) as pair;
    end if;
    return null;
end
$$;
create trigger session_starts after insert on oakleaf.session
for each row when (new.tags is not null or new.title is not null) execute function oakleaf.sync_session();
create trigger session_changes after update on oakleaf.session
for each row when (
    (new.facts <> old.facts and not new.needs_indexing)
    or new.tags is distinct from old.tags or new.title is distinct from old.title
    or ((new.tags is not null or new.title is not null) and new.active_at <> old.active_at)
) execute function oakleaf.sync_session();
create trigger session_ends after delete on oakleaf.session
for each row when (old.tags is not null or old.title is not null) execute function oakleaf.sync_session();

create table oakleaf.session_detail (
    session_number bigint primary key references oakleaf.session (number),
    space          text collate "C" not null,
    spec           text,
    policy         text,
    workspace      text,
    state          text
);

create table oakleaf.draft (
    session_number bigint primary key references oakleaf.session (number),
    space          text collate "C" not null,
    branch         bigint not null,
    seq            bigint not null,
    fence          bigint not null,
    text           bytea not null,    -- UTF-8; an answer in flight may contain a NUL, which text refuses
    at             bigint not null
);

create table oakleaf.branch (
    id             bigint primary key default nextval('oakleaf.branch_id'),
    space          text collate "C" not null,
    session_number bigint not null,  -- no foreign key: a branch outlives its purged session while a fork needs it
    parent         bigint references oakleaf.branch (id),
    parent_seq     bigint not null
);
create index branch_by_session on oakleaf.branch (session_number);
create index branch_by_parent on oakleaf.branch (parent) where parent is not null;

create table oakleaf.entry (
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
create index entry_public on oakleaf.entry (branch, seq) where not internal;
create index entry_input on oakleaf.entry (branch, seq) where turn = seq;
create index entry_non_message on oakleaf.entry (branch, seq) where kind is not null;

create table oakleaf.tool_call (
    branch bigint not null,
    hash   bigint not null,
    seq    bigint not null,
    space  text collate "C" not null,
    primary key (branch, hash, seq)
);

create table oakleaf.usage (
    session_number     bigint not null,
    number             bigint not null,
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
    primary key (session_number, number)
);
-- Which calls belong to an entry, so that a page of a long session reads only the calls of its entries. Most sessions have
-- fewer calls than this and never touch it; a call of a long one writes 80 bytes more to the log. `case`, because under a
-- policy `coalesce` keeps PostgreSQL from using it.
create index usage_by_entry on oakleaf.usage (session_number, branch, (case when answer_seq is null then after_seq else answer_seq end))
    where number > 256;

create table oakleaf.journal (
    session_number bigint not null,
    number         bigint not null,
    space          text collate "C" not null,
    owner          text collate "C",
    kind           text not null,
    key            text,
    branch         bigint,
    first_seq      bigint,
    last_seq       bigint,
    data           text,
    at             bigint not null,
    input_key      text,               -- of the queued input that it took, whose writer may still wait for an answer
    primary key (session_number, number)
);

create index journal_key on oakleaf.journal (session_number, key) where left(key, 1) <> '~';
-- Labels without reading the journal; an append of anything else does not touch it.
create index journal_label on oakleaf.journal (session_number, number) where kind = 'labelled';

create table oakleaf.inbox (
    session_number bigint not null references oakleaf.session (number),
    number         bigint not null,
    space          text collate "C" not null,
    owner          text collate "C",
    key            text,               -- of the writer, so that an enqueue whose answer was lost is not repeated
    body           bytea not null,     -- a user message, as JSON
    at             bigint not null,
    imported       boolean not null default false,
    primary key (session_number, number)
);

create index inbox_of_client on oakleaf.inbox (session_number, number) where key is null; -- what no worker has seen yet

create table oakleaf.blob (
    number bigint primary key generated always as identity,
    space  text collate "C" not null,
    hash   text collate "C" not null,
    mime   text not null,
    size   bigint not null,
    at     bigint not null,
    bytes  bytea not null,
    unique (space, hash)
);
alter table oakleaf.blob alter column bytes set storage external; -- images do not compress, and parts of it are read
create table oakleaf.blob_use (
    branch      bigint not null,
    seq         bigint not null,
    blob_number bigint not null references oakleaf.blob (number), -- deleting a blob waits for a transaction that has just used it
    space       text collate "C" not null,
    primary key (branch, seq, blob_number)
);
create index blob_use_by_blob on oakleaf.blob_use (blob_number);

-- The search index: words without text or order, each with a letter for its column. It yields candidates, which are
-- read and compared as in any other store. An entry too large for a tsvector is always a candidate.
create table oakleaf.search (
    id             bigint not null,     -- branch << 32 | seq; seq 0 of a first branch: the session's title
    space          text collate "C" not null,
    session_number bigint not null,     -- reported as the match: the entry's session or, after its purge, the oldest fork that needs the entry
    at             bigint not null,
    words          tsvector not null,
    primary key (space, id)             -- a search walks the newest entries of its space first
);
create index search_by_word on oakleaf.search using gin (words);
create table oakleaf.search_progress (
    session_number bigint primary key,
    space          text collate "C" not null,
    facts          bigint not null,
    title          text
);

-- Rows to lock, without content, for operations that must exclude each other. Not advisory locks: every login can take
-- those, and can see others take them.
create table oakleaf.lock (
    number integer primary key
);

-- A login with a row here is that owner, whatever it sets; any other is the owner that its settings name.
create table oakleaf.login (
    role  regrole primary key,
    space text collate "C" not null check (space <> ''),
    owner text collate "C" not null check (owner <> '')
);
-- The same by name. A dump has no roles: where they are missing the rows of `login` are lost, and doctor compares.
create table oakleaf.login_by_name (
    role    text primary key,
    role_id oid not null,
    space   text collate "C" not null,
    owner   text collate "C" not null
);

-- The part of an entry that the public may read: its text, without reasoning, calls or handles. A NUL is shown as
-- U+FFFD. The function's body is parsed when it is created: no setting of the caller changes what its strings mean.
create function oakleaf.message_text(body bytea) returns text
language sql immutable strict parallel safe return (
    select coalesce(string_agg(part ->> 'text', '' order by position), '')
    from json_array_elements(
        regexp_replace(convert_from(body, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json -> 'parts'
    ) with ordinality as parts (part, position)
    where part ->> 'type' = 'text'
);

-- For people: each message of each session's active path, exactly once, in the current space.
create view oakleaf.active_message with (security_invoker = true) as
with recursive line (number, branch, last) as (
    select number, branch, seq from oakleaf.session where trashed_at is null
    union all
    select line.number, branch.parent, least(line.last, branch.parent_seq)
    from line join oakleaf.branch on branch.id = line.branch
    where branch.parent is not null
)
select session.id as session_id, entry.seq, entry.turn, entry.step, entry.role,
       oakleaf.message_text(entry.body) as text, entry.internal, entry.model, entry.finish, entry.at,
       convert_from(entry.body, 'UTF8') as body
from line
join oakleaf.session on session.number = line.number
join oakleaf.branch on branch.id = line.branch
join oakleaf.entry on entry.branch = line.branch and entry.seq > branch.parent_seq and entry.seq <= line.last
where entry.kind is null;

-- PostgreSQL samples columns for its planner. What people wrote is not sampled: a purged title would stay in pg_statistic.
alter table oakleaf.session alter column title set statistics 0, alter column tags set statistics 0,
    alter column error set statistics 0, alter column trigger_id set statistics 0;
alter table oakleaf.session_detail alter column spec set statistics 0, alter column policy set statistics 0,
    alter column workspace set statistics 0, alter column state set statistics 0;
alter table oakleaf.draft alter column text set statistics 0;
alter table oakleaf.entry alter column evidence set statistics 0, alter column body set statistics 0;
alter table oakleaf.journal alter column data set statistics 0, alter column key set statistics 0;
alter table oakleaf.inbox alter column body set statistics 0;
alter table oakleaf.blob alter column bytes set statistics 0;
alter table oakleaf.search alter column words set statistics 0;
alter table oakleaf.search_progress alter column title set statistics 0;

-- The policies compare nullif(space, ''), of which PostgreSQL knows nothing: it expects a row in two hundred, and so reads
-- all of them rather than the first page of an index. With these it knows how many spaces there are.
create statistics oakleaf.session_space on (nullif(space, '')) from oakleaf.session;
create statistics oakleaf.session_tag_space on (nullif(space, '')) from oakleaf.session_tag;
create statistics oakleaf.search_space on (nullif(space, '')) from oakleaf.search;
