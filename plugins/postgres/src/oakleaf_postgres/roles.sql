-- Policies, and what the public may call. Every `oakleaf migrate` runs this file; running it again loses nothing. Then it
-- revokes every right and grants those that `rights.py` lists. {owner}, {service} and {client} are names of roles.
--
-- The owner creates the tables; row level security is forced, so it applies to the owner, too. An application's login
-- is a member of the service role, which reads and writes one space, named by `oakleaf.space` in each transaction. The
-- client role reads the public views and inserts into one of them, for the space and owner in `oakleaf.space` and
-- `oakleaf.owner`; it has no right on any table, sequence or index behind them. Without those settings neither role
-- sees anything. A login that is bound (`oakleaf.bind`, at the end) is always one owner, whatever it sets.

-- -- rows -----------------------------------------------------------------------------------------------

-- The identity of the caller. `session_user` is the login, also within the functions below; only a superuser can
-- change it.
create or replace view oakleaf.caller as
select coalesce(login.space, nullif(current_setting('oakleaf.space', true), '')) as space,
       coalesce(login.owner, nullif(current_setting('oakleaf.owner', true), '')) as owner
from (select quote_ident(session_user)::regrole as role) as person left join oakleaf.login on login.role = person.role;

do $$
declare
    name text;
    -- A setting of an earlier transaction reads as ''. In a subquery, because the planner evaluates a bare setting,
    -- finds it empty, expects no row of that space, and reads all of them to find the one whose id is known. Not the
    -- bare column, so that no index on space is used for a policy, however few rows old statistics promise: a query
    -- that wants such an index names the space itself.
    mine text := 'nullif(space, '''') = (select nullif(current_setting(''oakleaf.space'', true), ''''))';
    here text := 'space = (select space from oakleaf.caller)';
    own  text := 'space = (select space from oakleaf.caller) and owner = (select owner from oakleaf.caller)';
begin
    foreach name in array array['session', 'session_detail', 'draft', 'branch', 'entry', 'tool_call', 'usage', 'journal',
                                'inbox', 'blob', 'blob_use', 'search', 'search_progress', 'session_tag',
                                'migration', 'lock', 'login', 'login_by_name'] loop
        execute format('alter table oakleaf.%I enable row level security', name);
        execute format('alter table oakleaf.%I force row level security', name);
        execute format('drop policy if exists service on oakleaf.%I', name);
        execute format('drop policy if exists reader on oakleaf.%I', name);
        execute format('drop policy if exists client on oakleaf.%I', name);
        continue when name in ('migration', 'lock', 'login', 'login_by_name'); -- belong to no space
        execute format('create policy service on oakleaf.%I to {service} using (%s) with check (%s)', name, mine, mine);
    end loop;
    -- For the owner's role, under which the functions below run: they read one owner's sessions for the public.
    execute format('create policy reader on oakleaf.session for select to {owner} using (%s)', own);
    execute format('create policy reader on oakleaf.branch for select to {owner} using (%s)', here);
    execute format('create policy reader on oakleaf.entry for select to {owner} using (%s and not internal)', own);
    execute format('create policy reader on oakleaf.journal for select to {owner} using (%s)', own);
    execute format('create policy reader on oakleaf.inbox to {owner} using (%s) with check (%s)', own, own);
    execute 'drop policy if exists waiting on oakleaf.inbox'; -- for spaces_with_client_input; own_inputs compares the owner
    execute 'create policy waiting on oakleaf.inbox for select to {owner} using (key is null)';
end
$$;
create policy reader on oakleaf.migration to {owner} using (true) with check (true);
create policy service on oakleaf.migration for select to {service} using (true);
create policy reader on oakleaf.lock to {owner} using (true) with check (true);
create policy service on oakleaf.lock to {service} using (true) with check (false);
create policy reader on oakleaf.login to {owner} using (true) with check (true);
create policy client on oakleaf.login to {client} using (false); -- allows nothing, and tells the next migration its name
create policy reader on oakleaf.login_by_name to {owner} using (true) with check (true);
insert into oakleaf.lock select generate_series(0, 2047) on conflict do nothing;

-- The operators of full text search are not leakproof: under a policy PostgreSQL would not use the index for them. So
-- the service matches words only through these two, which are limited to the current space. The first walks the newest
-- rows, the second asks the index of words, which finds what is rare and reads every entry with what is common.
create policy reader on oakleaf.search for select to {owner} using (true);

-- Also returns the last row it looked at, and with each row how many that were.
create or replace function oakleaf.match_newest(query tsquery, first bigint, last bigint, max_walked integer, max_rows integer)
returns table (id bigint, session_number bigint, at bigint, is_match boolean, walked bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off set enable_seqscan = off as $$
    with newest as materialized (
        select search.id, search.session_number, search.at, search.words @@ query as is_match from oakleaf.search
        where search.space = nullif(current_setting('oakleaf.space', true), '')
          and search.id >= first and search.id < last
        order by search.id desc limit max_walked
    ), walk as (
        select count(*) as walked, min(newest.id) as lowest from newest
    ), matches as (
        select * from newest where newest.is_match order by newest.id desc limit max_rows
    )
    select matches.id, matches.session_number, matches.at, true, walk.walked from matches cross join walk
    union all
    select walk.lowest, null, null, false, walk.walked from walk where walk.walked > 0
$$;

-- Without scans of the primary key, which would compare every row of the space.
create or replace function oakleaf.match_words(query tsquery, first bigint, last bigint, max_rows integer)
returns table (id bigint, session_number bigint, at bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off
set enable_seqscan = off set enable_indexscan = off as $$
    select search.id, search.session_number, search.at from oakleaf.search
    where search.words @@ query and nullif(search.space, '') = nullif(current_setting('oakleaf.space', true), '')
      and search.id + 0 >= first and search.id + 0 < last
    order by search.id desc limit max_rows
$$;

-- -- the public -----------------------------------------------------------------------------------------

-- Functions and not plain views: a plan would show, by the rows a filter removed, how many exist that the client may
-- not see. They compare the identity themselves, since policies do not apply to an owner that is superuser. Each
-- prints no plan, whose costs would show it, too, and
-- names its search path, with pg_temp last: by default it comes first, and a client could replace a type or a table of
-- ours by its own.

-- A task's input and answer are its parent's tool call and result: internal, as a replay is.
create or replace view oakleaf.own_session as
select session.number, session.id, session.space, session.owner, session.title, session.agent, session.status,
       session.turns, session.branch, session.seq, session.started_at, session.updated_at
from oakleaf.session
where session.space = (select space from oakleaf.caller) and session.owner = (select owner from oakleaf.caller)
  and session.trashed_at is null and coalesce(session.relation, '') not in ('task', 'replay');

create or replace function oakleaf.own_sessions()
returns table (session_id text, title text, agent text, status text, turns bigint, started_at bigint, updated_at bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
    select id, title, agent, status, turns, started_at, updated_at from oakleaf.own_session
$$;

create or replace function oakleaf.own_messages(of_session text)
returns table (session_id text, seq bigint, role text, at bigint, text text)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
    with recursive line (session_id, space, owner, branch, first, last, parent) as (
        select own_session.id, own_session.space, own_session.owner, branch.id, branch.parent_seq + 1, own_session.seq, branch.parent
        from oakleaf.own_session cross join lateral (
            -- `offset 0` makes it one index probe per session, step and branch; as a join PostgreSQL may read the whole table.
            select id, parent, parent_seq from oakleaf.branch where branch.id = own_session.branch offset 0
        ) as branch
        where own_session.id collate "POSIX" between coalesce(of_session, '') and coalesce(of_session, U&'\+10FFFF')
        union all
        select line.session_id, line.space, line.owner, branch.id, branch.parent_seq + 1,
               least(line.last, line.first - 1), branch.parent
        from line cross join lateral (
            select id, parent, parent_seq from oakleaf.branch where branch.id = line.parent and branch.id < line.branch offset 0
        ) as branch
    )
    select line.session_id, entry.seq, entry.role, entry.at, oakleaf.message_text(entry.body)
    from line cross join lateral (
        select seq, role, at, body from oakleaf.entry
        where entry.branch = line.branch and entry.seq between line.first and line.last
          and not entry.internal and entry.kind is null and entry.space = line.space and entry.owner = line.owner offset 0
    ) as entry
    order by line.session_id, entry.seq
$$;

create or replace function oakleaf.own_facts(of_session text, after bigint)
returns table (session_id text, number bigint, kind text, at bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
    select own_session.id, journal.number, -- an internal fact has no kind: the numbers have no gap
           case when journal.kind in ('turn_started', 'turn_ended', 'turn_left', 'turn_refused') then journal.kind end, journal.at
    from oakleaf.own_session join oakleaf.journal on journal.session_number = own_session.number
    where own_session.id collate "POSIX" between coalesce(of_session, '') and coalesce(of_session, U&'\+10FFFF') and journal.number > after
    order by own_session.id, journal.number
$$;

create or replace function oakleaf.own_inputs()
returns table (session_id text, number bigint, at bigint, text text)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
    select own_session.id, inbox.number, inbox.at, oakleaf.message_text(inbox.body)
    from oakleaf.own_session join oakleaf.inbox on inbox.session_number = own_session.number and inbox.owner = own_session.owner
$$;

-- The spaces in which a client's input waits: for a worker, which serves all of them and sees one at a time. Only such
-- an input has no key.
create or replace function oakleaf.spaces_with_client_input() returns table (space text)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
    select distinct inbox.space from oakleaf.inbox where inbox.key is null
$$;

-- Input for a session of the caller: always a user message, always text. The error does not show whether a session
-- is missing or another owner's.
create or replace function oakleaf.queue_input() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
declare
    target record;
    message text;
begin
    select own_session.number, own_session.space, own_session.owner into target from oakleaf.own_session
    where own_session.id collate "POSIX" = new.session_id;
    if not found then
        raise exception 'no such session' using errcode = 'no_data_found';
    end if;
    if new.text is null or length(new.text) = 0 or length(new.text) > 1000000 then
        raise exception 'input is text of 1 to 1,000,000 characters' using errcode = 'check_violation';
    end if;
    if (select count(*) from oakleaf.inbox where session_number = target.number) >= 1000 then -- else one client could fill the disk
        raise exception '1,000 inputs are queued for this session' using errcode = 'program_limit_exceeded';
    end if;
    message := json_build_object('role', 'user', 'parts',
                              json_build_array(json_build_object('type', 'text', 'text', new.text)))::text;
    loop
        begin
            insert into oakleaf.inbox (session_number, number, space, owner, body, at)
            select target.number, coalesce(max(number), 0) + 1, target.space, target.owner, convert_to(message, 'UTF8'),
                   (extract(epoch from clock_timestamp()) * 1000000)::bigint
            from oakleaf.inbox where session_number = target.number
            returning number, at into new.number, new.at;
            return new;
        exception when unique_violation then -- another input took the number: take the next one
            if current_setting('transaction_isolation') <> 'read committed' then -- it would never be seen from here
                raise exception 'another input was queued; try again' using errcode = 'serialization_failure';
            end if;
        end;
    end loop;
end
$$;

create or replace view oakleaf.public_session with (security_barrier) as select * from oakleaf.own_sessions();
create or replace view oakleaf.public_message with (security_barrier) as select * from oakleaf.own_messages(null);
create or replace view oakleaf.public_fact with (security_barrier) as select * from oakleaf.own_facts(null, 0);
create or replace view oakleaf.public_input with (security_barrier) as select * from oakleaf.own_inputs();
create or replace trigger queue_input instead of insert on oakleaf.public_input
    for each row execute function oakleaf.queue_input();

-- -- logins ---------------------------------------------------------------------------------------------

create or replace function oakleaf.grant_client(who regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute format({client_grants}, who);
end
$$;

-- For the owner of the schema: this login is that owner from now on, and no setting changes that. It gets the client's
-- rights itself, and need not be in the client role.
create or replace function oakleaf.bind(who regrole, to_space text, to_owner text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    insert into oakleaf.login (role, space, owner) values (who, to_space, to_owner)
    on conflict (role) do update set space = excluded.space, owner = excluded.owner;
    delete from oakleaf.login_by_name where role_id = who;
    insert into oakleaf.login_by_name (role, role_id, space, owner) select rolname, oid, to_space, to_owner from pg_roles where oid = who
    on conflict (role) do update set role_id = excluded.role_id, space = excluded.space, owner = excluded.owner;
    perform oakleaf.grant_client(who);
end
$$;

-- Revokes its rights, too: a login that kept them without its row could name any owner.
create or replace function oakleaf.unbind(who regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select from pg_roles where oid = who) then -- else the role was dropped, and its rights with it
        execute format('revoke all on all tables in schema oakleaf from %s', who);
        execute format('revoke all on all functions in schema oakleaf from %s', who);
        execute format('revoke all on schema oakleaf from %s', who);
    end if;
    delete from oakleaf.login where role = who;
    delete from oakleaf.login_by_name where role_id = who;
end
$$;

-- For doctor: logins that were bound to an owner of this space and are not any more, because their role is missing.
create or replace function oakleaf.lost_logins() returns table (role text, owner text)
language sql stable security definer set search_path = pg_catalog, pg_temp set debug_print_plan = off as $$
    select login_by_name.role, login_by_name.owner from oakleaf.login_by_name
    where login_by_name.space = nullif(current_setting('oakleaf.space', true), '')
      and not exists (select from oakleaf.login join pg_roles on oid = login.role where rolname = login_by_name.role)
    order by 1
$$;

-- For the owner of the schema: a role that is missing shall stay so.
create or replace function oakleaf.forget_login(missing text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
    delete from oakleaf.login_by_name where login_by_name.role = missing
$$;
delete from oakleaf.login where not exists (select from pg_roles where oid = role); -- dropped roles
select oakleaf.grant_client(role) from oakleaf.login;
