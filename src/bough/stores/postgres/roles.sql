-- Who may do what. Run by `bough migrate`, every time: nothing is lost when it is run again.
-- {owner}, {service} and {client} are names of roles.
--
-- The owner made the tables; forced row level security binds it too. The service role is what an application's
-- login is a member of: it reads and writes one space, named by `bough.space` in each transaction. The client
-- role reads the public's views and writes into one of them, as `bough.space` and `bough.owner` say; it has no
-- right on any table, sequence or index behind them. Without those settings either sees nothing. A login that is
-- bound (`bough.bind`, at the end) is one owner for good, whatever it sets.

revoke all on schema bough from public;
revoke all on all tables in schema bough from public, {client};
revoke all on all sequences in schema bough from public, {client};
revoke all on all functions in schema bough from public, {client};
grant usage on schema bough to {service}, {client};
grant select on bough.migration to {service};
grant select, insert, update, delete on bough.session, bough.session_detail, bough.draft, bough.branch,
    bough.usage, bough.inbox, bough.blob, bough.search_mark to {service};
grant select, insert, delete on bough.entry, bough.journal, bough.blob_use to {service}; -- these never change
grant select (place, space, session_no, at), insert, delete on bough.search to {service};
grant select on bough.active_message to {service};
grant select, update on bough.lock to {service}; -- to lock them: the policy lets no row change
grant usage on sequence bough.session_no, bough.branch_id to {service};
grant execute on function bough.text_of(bytea) to {service};

-- -- rows -----------------------------------------------------------------------------------------------

-- Who asks. `session_user` is who logged in, and stays so within the functions below; only a superuser changes it.
create or replace view bough.me as
select coalesce(login.space, nullif(current_setting('bough.space', true), '')) as space,
       coalesce(login.owner, nullif(current_setting('bough.owner', true), '')) as owner
from (select quote_ident(session_user)::regrole as role) as person left join bough.login on login.role = person.role;

do $$
declare
    name text;
    -- A setting that is over is ''. As a question of its own, because PostgreSQL looks at a bare setting when it plans,
    -- finds it empty, expects no row of that space, and reads all of them to find the one whose id is known. And not the
    -- bare column, so that no index on space serves a policy, however few rows old statistics promise: who wants one
    -- says so in his query.
    mine text := 'nullif(space, '''') = (select nullif(current_setting(''bough.space'', true), ''''))';
    here text := 'space = (select space from bough.me)';
    own  text := 'space = (select space from bough.me) and owner = (select owner from bough.me)';
begin
    foreach name in array array['session', 'session_detail', 'draft', 'branch', 'entry', 'usage', 'journal',
                                'inbox', 'blob', 'blob_use', 'search', 'search_mark', 'migration', 'lock', 'login'] loop
        execute format('alter table bough.%I enable row level security', name);
        execute format('alter table bough.%I force row level security', name);
        execute format('drop policy if exists service on bough.%I', name);
        execute format('drop policy if exists reader on bough.%I', name);
        continue when name in ('migration', 'lock', 'login'); -- not of any space
        execute format('create policy service on bough.%I to {service} using (%s) with check (%s)', name, mine, mine);
    end loop;
    -- The owner, as the functions below meet it: a reader for the public of one owner's sessions.
    execute format('create policy reader on bough.session for select to {owner} using (%s)', own);
    execute format('create policy reader on bough.branch for select to {owner} using (%s)', here);
    execute format('create policy reader on bough.entry for select to {owner} using (%s and not internal)', own);
    execute format('create policy reader on bough.journal for select to {owner} using (%s)', own);
    execute format('create policy reader on bough.inbox to {owner} using (%s) with check (%s)', own, own);
end
$$;
create policy reader on bough.migration to {owner} using (true) with check (true);
create policy service on bough.migration for select to {service} using (true);
create policy reader on bough.lock to {owner} using (true) with check (true);
create policy service on bough.lock to {service} using (true) with check (false);
create policy reader on bough.login to {owner} using (true) with check (true);
insert into bough.lock select generate_series(0, 2047) on conflict do nothing;

-- The operators of full text search are not leakproof: behind a policy PostgreSQL would not use the index for
-- them. So the service asks for words through `found` alone, which is bound to the space that is set.
create policy reader on bough.search for select to {owner} using (true);

create or replace function bough.found(looked_for tsquery, first bigint, last bigint, most integer)
returns table (place bigint, session_no bigint, at bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select search.place, search.session_no, search.at from bough.search
    where search.words @@ looked_for and search.space = nullif(current_setting('bough.space', true), '')
      and search.place >= first and search.place < last
    order by search.place desc limit most
$$;
revoke all on function bough.found(tsquery, bigint, bigint, integer) from public;
grant execute on function bough.found(tsquery, bigint, bigint, integer) to {service};

-- -- the public -----------------------------------------------------------------------------------------

-- Functions and not plain views: a plan would tell, by the rows a filter removed, how many there are that the
-- client may not see. They compare the identity themselves, for policies do not bind an owner that is superuser.
-- Each names its search path, with pg_temp last: unnamed it would come first, and a client could put a type or a
-- table of its own in the place of ours.

-- A task's input and answer are its parent's tool call and result: internal, as a replay is.
create or replace view bough.mine as
select session.no, session.id, session.space, session.owner, session.title, session.agent, session.status,
       session.turns, session.branch, session.seq, session.started_at, session.updated_at
from bough.session
where session.space = (select space from bough.me) and session.owner = (select owner from bough.me)
  and session.trashed_at is null and coalesce(session.relation, '') not in ('task', 'replay');

create or replace function bough.own_sessions()
returns table (session_id text, title text, agent text, status text, turns bigint, started_at bigint, updated_at bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select id, title, agent, status, turns, started_at, updated_at from bough.mine
$$;

create or replace function bough.own_messages(of_session text)
returns table (session_id text, seq bigint, role text, at bigint, text text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with recursive line (session_id, space, owner, branch, first, last, parent) as (
        select mine.id, mine.space, mine.owner, branch.id, branch.parent_seq + 1, mine.seq, branch.parent
        from bough.mine join bough.branch on branch.id = mine.branch
        where mine.id collate "POSIX" = coalesce(of_session, mine.id)
        union all
        select line.session_id, line.space, line.owner, branch.id, branch.parent_seq + 1,
               least(line.last, line.first - 1), branch.parent
        from line join bough.branch on branch.id = line.parent and branch.id < line.branch
    )
    select line.session_id, entry.seq, entry.role, entry.at, bough.text_of(entry.body)
    from line join bough.entry on entry.branch = line.branch and entry.seq between line.first and line.last
    where not entry.internal and entry.kind is null
      and entry.space = line.space and entry.owner = line.owner
    order by line.session_id, entry.seq
$$;

create or replace function bough.own_facts(of_session text, after bigint)
returns table (session_id text, n bigint, kind text, at bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select mine.id, journal.n, -- what is not for the public is a stub: its numbers have no gap
           case when journal.kind in ('turn_started', 'turn_ended') then journal.kind end, journal.at
    from bough.mine join bough.journal on journal.session_no = mine.no
    where mine.id collate "POSIX" = coalesce(of_session, mine.id) and journal.n > after
    order by mine.id, journal.n
$$;

create or replace function bough.own_inputs()
returns table (session_id text, n bigint, at bigint, text text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select mine.id, inbox.n, inbox.at, bough.text_of(inbox.body)
    from bough.mine join bough.inbox on inbox.no = mine.no and inbox.owner = mine.owner
$$;

-- Input for a session of one's own: always a user's, always text. Whether it is foreign or absent is not told.
create or replace function bough.take_input() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    held record;
    said text;
begin
    select mine.no, mine.space, mine.owner into held from bough.mine
    where mine.id collate "POSIX" = new.session_id;
    if not found then
        raise exception 'no such session' using errcode = 'no_data_found';
    end if;
    if new.text is null or length(new.text) = 0 or length(new.text) > 1000000 then
        raise exception 'input is text of 1 to 1,000,000 characters' using errcode = 'check_violation';
    end if;
    if (select count(*) from bough.inbox where no = held.no) >= 1000 then -- or one client fills the disk
        raise exception '1,000 inputs wait for this session' using errcode = 'program_limit_exceeded';
    end if;
    said := json_build_object('role', 'user', 'parts',
                              json_build_array(json_build_object('type', 'text', 'text', new.text)))::text;
    loop
        begin
            insert into bough.inbox (no, n, space, owner, body, at)
            select held.no, coalesce(max(n), 0) + 1, held.space, held.owner, convert_to(said, 'UTF8'),
                   (extract(epoch from clock_timestamp()) * 1000000)::bigint
            from bough.inbox where no = held.no
            returning n, at into new.n, new.at;
            return new;
        exception when unique_violation then -- somebody else's input came between: take the next number
        end;
    end loop;
end
$$;

create or replace view bough.public_session with (security_barrier) as select * from bough.own_sessions();
create or replace view bough.public_message with (security_barrier) as select * from bough.own_messages(null);
create or replace view bough.public_fact with (security_barrier) as select * from bough.own_facts(null, 0);
create or replace view bough.public_input with (security_barrier) as select * from bough.own_inputs();
create or replace trigger take_input instead of insert on bough.public_input
    for each row execute function bough.take_input();

revoke all on function bough.own_sessions(), bough.own_messages(text), bough.own_facts(text, bigint),
    bough.own_inputs(), bough.take_input() from public;

-- -- logins ---------------------------------------------------------------------------------------------

create or replace function bough.admit(who regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute format('grant usage on schema bough to %s', who);
    execute format('grant execute on function bough.own_sessions(), bough.own_messages(text), '
                   'bough.own_facts(text, bigint), bough.own_inputs() to %s', who);
    execute format('grant select on bough.public_session, bough.public_message, bough.public_fact, '
                   'bough.public_input to %s', who);
    execute format('grant insert (session_id, text) on bough.public_input to %s', who);
end
$$;

-- For the owner of the schema: from now on this login is that owner, and no setting makes it anybody else. It has
-- the client's rights of its own, and need not be in the client role.
create or replace function bough.bind(who regrole, to_space text, to_owner text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    insert into bough.login (role, space, owner) values (who, to_space, to_owner)
    on conflict (role) do update set space = excluded.space, owner = excluded.owner;
    perform bough.admit(who);
end
$$;

-- With its rights: a login that kept them without its row would be whom it says it is.
create or replace function bough.unbind(who regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute format('revoke all on all tables in schema bough from %s', who);
    execute format('revoke all on all functions in schema bough from %s', who);
    execute format('revoke all on schema bough from %s', who);
    delete from bough.login where role = who;
end
$$;

revoke all on function bough.admit(regrole), bough.bind(regrole, text, text), bough.unbind(regrole) from public;
select bough.admit('{client}'::regrole);
select bough.admit(role) from bough.login;
