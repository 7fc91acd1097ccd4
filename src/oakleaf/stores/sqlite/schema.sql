-- Oakleaf's SQLite schema, format 1.0.
--
-- A session is one row; its leaf (branch, seq) is its current position. Entries are the nodes of a tree, stored by
-- branch: a branch has a parent and the seq at which it left it, so a path is a few range scans and a fork is one
-- session row and one branch row. The journal numbers everything that happened to a session; usage has one row per
-- model call. Three tables are keyed by one packed integer, (owner << 32) | number: clustered by owner, without a
-- second index, measured fastest to write and read.
--
-- Read it with sqlite3:  select seq, role, text from active_message where session_id = 'ses_…' order by seq;
-- Bodies are JSON bytes exactly as hashed; cast(body as text) shows them. Times are microseconds, UTC.

create table session (
    number              integer primary key autoincrement, -- the session's number in packed keys; never reused, so a purged one cannot come back
    id                  text not null unique,              -- the public name, ses_…
    space               text not null,                     -- tenant; every read filters by it
    owner               text,                              -- whose mailbox within the space; null: the space's own
    conversation_id     text not null,                     -- groups sessions over time; a fork has one of its own
    agent               text,                              -- the agent's name; its definition is session_detail.spec
    title               text,
    status              text not null,                     -- idle running waiting completed failed cancelled interrupted: a cache of the journal
    relation            text,                              -- fork task replay import; null: started by itself
    parent_session      text,                              -- by id and not by reference: the parent may be purged
    parent_seq          integer,                           -- the seq in the parent at which it branched off
    trigger_type        text,                              -- what started it: chat, email, cron, …
    trigger_id          text,
    model               text,                              -- as last set; the model that gave an answer is in its entry
    context_window      integer,
    tool_names          text,                              -- JSON array; the schemas are versioned with the code
    branch              integer not null,                  -- the leaf: compared and swapped by every append
    seq                 integer not null,
    seed_count          integer not null,                  -- entries 1..n of the root were there before the first turn
    turns               integer not null,                  -- inputs appended by this session, abandoned branches included
    calls               integer not null,                  -- totals of this session's own usage rows, updated in the same transaction
    input_tokens        integer not null,
    output_tokens       integer not null,
    cache_read_tokens   integer not null,
    cache_write_tokens  integer not null,
    cost_microcents     integer not null,
    unpriced_calls      integer not null,
    unknown_calls       integer not null,
    facts               integer not null,                  -- length of the journal: the number of its latest fact
    fence               integer not null,                  -- incremented with every lease: detects a runner that lost its lease
    holder              text,                              -- the process that runs it
    lease_until         integer,
    tags                text,                              -- JSON object of strings
    started_at          integer not null,
    updated_at          integer not null,
    completed_at        integer,
    trashed_at          integer,                           -- set: in the trash, restorable
    error               text,
    imported_facts      integer not null,                  -- facts up to this one came with an import: they decide nothing here
    active_at           integer not null,                  -- lists are sorted by it: the last input or move, and within a run the last step to a minute
    needs_indexing      integer not null default 1         -- 1: it may have text that the search index lacks
);
create index session_by_activity on session (space, active_at, number);
create index session_by_conversation on session (space, conversation_id, number);
create index session_by_parent on session (parent_session) where parent_session is not null;
-- A count by status reads nothing else: so it has the column of its condition, too.
create index session_by_status on session (space, status, active_at, number, trashed_at) where trashed_at is null;
create index session_by_agent on session (space, agent, active_at, number) where agent is not null;
create index session_by_model on session (space, model, active_at, number) where model is not null;
create index session_by_relation on session (space, relation, active_at, number) where relation is not null;
create index session_by_title on session (space, title, active_at, number) where title is not null;
create index session_by_start on session (space, started_at, id); -- the id makes the index so wide that SQLite takes it for nothing else
create index session_by_owner on session (space, owner, active_at, number) where owner is not null;
create index session_in_trash on session (space, active_at, number) where trashed_at is not null;
-- What the search index lacks. A change sets the flag if it is not set; whoever indexes the session clears it.
create index session_needs_indexing on session (space, number) where needs_indexing;

-- A row for each tag of each session, in both orders of lists. Triggers keep it in step with session.tags.
create table session_tag (
    space          text not null,
    name           text not null,
    value          text not null,
    session_number integer not null,
    active_at      integer not null,
    primary key (space, name, value, session_number)
) without rowid;
create index session_tag_by_activity on session_tag (space, name, value, active_at, session_number);
create trigger session_starts after insert on session when new.tags is not null begin
    insert into session_tag select new.space, key, value, new.number, new.active_at from json_each(new.tags);
end;
create trigger session_is_tagged after update of tags on session when new.tags is not old.tags begin
    delete from session_tag where session_number = old.number and (space, name, value) in (
        select old.space, key, value from json_each(old.tags));
    insert into session_tag select new.space, key, value, new.number, new.active_at from json_each(new.tags);
end;
create trigger session_is_active after update of active_at on session
when new.tags is not null and new.active_at <> old.active_at begin
    update session_tag set active_at = new.active_at where session_number = new.number and (space, name, value) in (
        select new.space, key, value from json_each(new.tags));
end;
create trigger session_ends after delete on session when old.tags is not null begin
    delete from session_tag where session_number = old.number and (space, name, value) in (
        select old.space, key, value from json_each(old.tags));
end;

-- The large, rarely read part of a session, separate so that the row rewritten by every append stays short.
create table session_detail (
    session_number integer primary key references session (number),
    spec           text,  -- JSON: the agent as it was at the start
    policy         text,  -- JSON
    workspace      text,  -- JSON: working_dir, fs_scope_tier, variables, …
    state          text   -- JSON: the state at the leaf; null after a rewind or fork: compute it from the entries
);

-- The text so far of an answer in flight. Valid only while (branch, seq) is the session's leaf.
create table draft (
    session_number integer primary key references session (number),
    branch         integer not null,
    seq            integer not null,
    fence          integer not null,  -- of the runner that wrote it
    text           text not null,     -- redacted like all text
    at             integer not null
);

create table branch (
    id             integer primary key autoincrement,
    session_number integer not null,  -- no foreign key: a branch outlives its purged session while a fork inherits it
    parent         integer references branch (id),
    parent_seq     integer not null   -- its own first seq is one more
);
create index branch_by_session on branch (session_number);
create index branch_by_parent on branch (parent) where parent is not null;

create table entry (
    id       integer primary key,       -- branch << 32 | seq
    turn     integer not null,          -- seq of the input it answers; 0: none
    step     integer not null,          -- which model call of the turn
    kind     text,                      -- null: message, as most are; uncompaction branch_summary settings note
    role     text,                      -- of a message; repeated from the body for queries
    internal integer not null,          -- 1: not for the public; fixed at append
    model    text,                      -- that answered
    finish   text,                      -- why it stopped
    entry_id blob not null,             -- chain hash: parent's id and this body
    at       integer not null,          -- for people; no order depends on it
    evidence blob,                      -- signatures for their issuer only; not in the id, not in exports
    body     blob not null              -- JSON bytes; blob, because text costs 2-10 % more to write and 7-30 % to load
);
create index entry_public on entry (id) where internal = 0; -- the public's reads touch nothing else
create index entry_input on entry (id) where turn = id & 4294967295; -- the turns of a path are counted without reading an entry
create index entry_non_message on entry (id) where kind is not null; -- settings and compactions of a path, without reading 100,000 messages

-- Which answers call a tool with which arguments: found without reading messages when the same call comes up on another
-- path. It follows from the bodies; what is found is compared with them.
create table tool_call (
    branch integer not null,
    hash   integer not null,            -- of the tool's name and the arguments
    seq    integer not null,            -- of the answer
    primary key (branch, hash, seq)
) without rowid;

create table usage (
    id                 integer primary key, -- session.number << 32 | the call's number
    call_id            text not null,
    branch             integer not null,    -- the branch of the answer, or the leaf's
    after_seq          integer not null,    -- the leaf's seq when the call was made
    answer_seq         integer,             -- null: no answer (failed, discarded, cut off)
    purpose            text,                -- null: answer; compaction, title, …
    bucket             text,                -- null: live; replay
    provider           text,
    model              text,
    input_tokens       integer,             -- everything read, cached or not; null: not reported
    output_tokens      integer,
    cache_read_tokens  integer,             -- part of input_tokens
    cache_write_tokens integer,             -- part of input_tokens
    cost_microcents    integer,             -- null: no price was known
    price_version      text,
    failed             integer not null,
    at                 integer not null
);
-- Which entries 256 calls of a session belong to, so that a page of a long session reads only the calls of its entries. It is
-- written once for so many calls, when most of them have their answers; an index of all calls would cost each step a page. A
-- block without a row is read: one that is not full yet, or of which a call was changed later.
create table usage_block (
    id        integer primary key, -- usage.id >> 8
    first_seq integer not null,    -- the least and the greatest seq of its calls, on any branch
    last_seq  integer not null
);
create trigger usage_fills_block after insert on usage when new.id & 255 = 15 and new.id & 4294967295 > 256 begin
    insert or replace into usage_block (id, first_seq, last_seq)
    select (new.id >> 8) - 1, min(coalesce(answer_seq, after_seq)), max(coalesce(answer_seq, after_seq)) from usage
    where id >= ((new.id >> 8) - 1) << 8 and id < (new.id >> 8) << 8;
end;
create trigger usage_changes after update of id, after_seq, answer_seq on usage begin
    delete from usage_block where id in (old.id >> 8, new.id >> 8);
end;
create trigger usage_ends after delete on usage begin
    delete from usage_block where id = old.id >> 8;
end;

create table journal (
    id        integer primary key, -- session.number << 32 | the fact's number
    kind      text not null,
    key       text,                -- of the change: the caller's, or one that Oakleaf made (~…); null for extra facts of the same change
    branch    integer,             -- the leaf after the change; columns and not JSON, because most facts hold nothing else
    first_seq integer,             -- of the entries it appended
    last_seq  integer,
    data      text,                -- JSON: the rest; null: nothing
    at        integer not null
);

-- A caller's key is looked up before anything is written; keys that Oakleaf made cost nothing here.
create index journal_key on journal (key) where substr(key, 1, 1) <> '~';
-- Labels without reading the journal; an append of anything else does not touch it.
create index journal_label on journal (id) where kind = 'labelled';

-- Inputs for a session that is running, consumed in order by its runner.
create table inbox (
    session_number integer not null references session (number),
    number         integer not null,
    body           blob not null,    -- a user message, as JSON, redacted like everything
    at             integer not null,
    imported       integer not null default 0,  -- 1: it came with an import
    primary key (session_number, number)
) without rowid;

create table blob (
    number integer primary key,
    space  text not null,      -- sharing across spaces would reveal to one tenant what another has
    hash   text not null,      -- sha256, hex
    mime   text not null,
    size   integer not null,
    at     integer not null,   -- unreferenced ones are only collected some time after this
    bytes  blob not null,
    unique (space, hash)
);
create table blob_use (
    entry       integer not null references entry (id),
    blob_number integer not null references blob (number),
    primary key (entry, blob_number)
) without rowid;
create index blob_use_by_blob on blob_use (blob_number);

-- The search index: words only, no text. Appending does not touch it; it is updated before a search.
-- The `ascii` tokenizer suffices because our own words are inserted: without case and accents, separated by one space.
-- Measured on 32 MB of text: 0.45 of the text's size, 18,700 entries/s; `trigram` 2.4 and 4,300/s.
create virtual table search using fts5 (
    text,   -- of messages, calls, results and summaries; of a title's row, the title
    tool,   -- names of the tools called, or whose results these are
    model,  -- that answered
    marker, -- role, kind and error as one word each; the space and owner as hashes
    content = '', contentless_delete = 1, tokenize = 'ascii'
);
-- A search looks into every segment of the index, and each batch of new text is one. So two of a size are merged into one
-- when a search has indexed what is new: 5 segments on average instead of 12. A leaf of the index fits into a page of the file.
insert into search (search, rank) values ('usermerge', 2), ('pgsz', 1980);
create table search_entry (
    id             integer primary key, -- branch << 32 | seq of what is indexed; seq 0 of a first branch: the session's title
    session_number integer not null,    -- listed under: the owner, or the oldest heir of what a purge left
    at             integer not null     -- repeated, so that times are compared without reading the entry
);
create table search_progress (
    session_number integer primary key,
    facts          integer not null,    -- its count of facts when it was indexed
    title          text                 -- as indexed
);

-- For people: each message of each session's active path, exactly once.
create view active_message as
with recursive line (number, branch, last) as (
    select number, branch, seq from session where trashed_at is null
    union all
    select line.number, branch.parent, min(line.last, branch.parent_seq)
    from line join branch on branch.id = line.branch
    where branch.parent is not null
)
select session.id as session_id, entry.id & 4294967295 as seq, entry.turn, entry.step, entry.role,
       (select group_concat(coalesce(part.value ->> 'text', '[' || (part.value ->> 'type') || ']'), char(10))
        from json_each(cast(entry.body as text), '$.parts') as part) as text,
       entry.internal, entry.model, entry.finish, entry.at, cast(entry.body as text) as body
from line
join session on session.number = line.number
join entry on entry.id between line.branch << 32 and (line.branch << 32) + line.last
where entry.kind is null;
