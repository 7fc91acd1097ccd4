-- Labels without reading the journal; an append of anything else does not touch it.
create index if not exists journal_label on journal (session_no, n) where kind = 'labelled';
-- Of every status: a count reads nothing else.
drop index if exists session_by_status;
create index session_by_status on session (space, status, active_at, no) where trashed_at is null;
create index if not exists session_in_trash on session (space, active_at, no) where trashed_at is not null;

-- A migration is run by the owner, from whom row level security hides the rows that are converted here. The rights, which
-- every migration writes afterwards, force it again.
alter table session no force row level security;
alter table search_mark no force row level security;
alter table usage no force row level security;

-- Usage since a time is looked for in the sessions that were active since then: so it reads nothing of other spaces.
update session set active_at = last.at from (select session_no, max(at) as at from usage group by session_no) as last
where last.session_no = session.no and last.at > session.active_at;
drop index if exists usage_by_time;
drop statistics if exists usage_space;

-- A search walks the newest entries of its space first.
do $$
begin
    if (select array_length(conkey, 1) from pg_constraint where conrelid = 'bough.search'::regclass and contype = 'p') = 1 then
        alter table search drop constraint search_pkey, add primary key (space, place);
    end if;
end
$$;

-- What the search index lacks. An append sets the flag if it is not set; whoever indexes the session clears it. A flag,
-- because comparing each session with its mark reads all of them for every search.
do $$
begin
    if not exists (select from pg_attribute where attrelid = 'bough.session'::regclass and attname = 'stale') then
        alter table session add column stale boolean not null default false;
        alter table session alter column stale set default true;
        update session set stale = true where not exists (
            select from search_mark where search_mark.no = session.no and search_mark.facts = session.facts);
    end if;
end
$$;
create index if not exists session_stale on session (space, no) where stale;

-- A row for each tag of each session, in both orders of lists. The tag is a hash of its name and value, which may be longer
-- than an index allows; lists compare the tags themselves as well.
create table if not exists session_tag (
    space      text collate "C" not null,
    tag        bytea not null,
    session_no bigint not null,
    active_at  bigint not null,
    primary key (space, tag, session_no)
);
alter table session_tag no force row level security;
create index if not exists session_tag_by_activity on session_tag (space, tag, active_at, session_no);
create or replace function tag_hash(name text, value text) returns bytea
language sql immutable strict parallel safe
return substring(sha256(convert_to(name || U&'\001f' || value, 'UTF8')) for 16);
insert into session_tag select space, tag_hash(key, value), no, active_at from session, jsonb_each_text(tags)
on conflict do nothing;

-- By triggers, so that a program of an earlier version that still runs keeps both. `when` costs an append nothing to speak of.
create or replace function follow_session() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'UPDATE' then
        if new.facts <> old.facts and not new.stale then
            update bough.session set stale = true where no = new.no;
        end if;
        if new.tags is not distinct from old.tags then
            update bough.session_tag set active_at = new.active_at
            from jsonb_each_text(new.tags) as pair
            where session_tag.space = new.space and session_tag.tag = bough.tag_hash(pair.key, pair.value)
              and session_tag.session_no = new.no and session_tag.active_at <> new.active_at;
            return null;
        end if;
    end if;
    if tg_op <> 'INSERT' then
        delete from bough.session_tag using jsonb_each_text(old.tags) as pair
        where session_tag.space = old.space and session_tag.tag = bough.tag_hash(pair.key, pair.value)
          and session_tag.session_no = old.no;
    end if;
    if tg_op <> 'DELETE' then
        insert into bough.session_tag (space, tag, session_no, active_at)
        select new.space, bough.tag_hash(pair.key, pair.value), new.no, new.active_at
        from jsonb_each_text(new.tags) as pair;
    end if;
    return null;
end
$$;
create or replace trigger session_starts after insert on session
for each row when (new.tags is not null) execute function follow_session();
create or replace trigger session_changes after update on session
for each row when (
    (new.facts <> old.facts and not new.stale) or new.tags is distinct from old.tags
    or (new.tags is not null and new.active_at <> old.active_at)
) execute function follow_session();
create or replace trigger session_ends after delete on session
for each row when (old.tags is not null) execute function follow_session();

create statistics if not exists session_tag_space on (nullif(space, '')) from session_tag;
analyze session, session_tag;

-- Who was bound, by name. A dump has no roles: where they are missing the rows of `login` are lost, and doctor compares.
create table if not exists bound (
    role  text primary key,
    no    oid not null,
    space text collate "C" not null,
    owner text collate "C" not null
);
alter table bound no force row level security;
alter table login no force row level security;
insert into bound select rolname, oid, space, owner from login join pg_roles on oid = role on conflict do nothing;
