-- Indexes and a table for what people look up, so that a page of a list reads what it returns. Part of a new store, and
-- of the migration to format 1.2. Triggers keep them, because a program of format 1.1 may write to the file, too.

-- Labels without reading the journal; an append of anything else does not touch it.
create index journal_label on journal (id) where kind = 'labelled';

-- A count by status reads nothing else: so it has the column of its condition, too.
create index session_by_status on session (space, status, active_at, no, trashed_at) where trashed_at is null;
create index session_by_agent on session (space, agent, active_at, no) where agent is not null;
create index session_by_owner on session (space, owner, active_at, no) where owner is not null;
create index session_in_trash on session (space, active_at, no) where trashed_at is not null;

-- What the search index lacks. An append sets the flag if it is not set; whoever indexes the session clears it.
create index session_stale on session (space, no) where stale;
create trigger session_grows after update of facts on session when not old.stale begin
    update session set stale = 1 where no = new.no;
end;

-- A row for each tag of each session, in both orders of lists.
create table session_tag (
    space     text not null,
    name      text not null,
    value     text not null,
    no        integer not null,
    active_at integer not null,
    primary key (space, name, value, no)
) without rowid;
create index session_tag_by_activity on session_tag (space, name, value, active_at, no);
create trigger session_starts after insert on session when new.tags is not null begin
    insert into session_tag select new.space, key, value, new.no, new.active_at from json_each(new.tags);
end;
create trigger session_is_tagged after update of tags on session when new.tags is not old.tags begin
    delete from session_tag where no = old.no and (space, name, value) in (
        select old.space, key, value from json_each(old.tags));
    insert into session_tag select new.space, key, value, new.no, new.active_at from json_each(new.tags);
end;
create trigger session_is_active after update of active_at on session
when new.tags is not null and new.active_at <> old.active_at begin
    update session_tag set active_at = new.active_at where no = new.no and (space, name, value) in (
        select new.space, key, value from json_each(new.tags));
end;
create trigger session_ends after delete on session when old.tags is not null begin
    delete from session_tag where no = old.no and (space, name, value) in (
        select old.space, key, value from json_each(old.tags));
end;
