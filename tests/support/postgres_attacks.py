"""Attacks on the rows and rights of a PostgreSQL store, as SQL: {0} is a relation, {1} a column, {own} and {hidden} ids.

Holds the statements only; test_postgres_attacks runs them and checks the outcome.
"""

from __future__ import annotations

READS = (
    "select * from {0}",
    "table {0}",
    "select count(*) from {0}",
    "select x from {0} x",
    "select row_to_json(x) from {0} x",
    "select x::text from {0} x",
    "select ctid, xmin, xmax, tableoid from {0}",
    "select true where exists (select from {0})",
    "with x as materialized (select * from {0}) select * from x",
    "select y.* from oakleaf.public_session cross join lateral (select * from {0}) y",
    "select (select array_agg(x::text) from {0} x)",
    "select query_to_xml('select * from {0}', true, false, '')",
    "select table_to_xml('{0}', true, false, '')",
    "select cursor_to_xml('c', 9, true, false, '') from (select 1) y",
    "select * from ts_stat('select words from {0}')",
    "declare c cursor for select * from {0}; fetch all from c",
    "declare c cursor with hold for select * from {0}; fetch all from c",
    "prepare p as select * from {0}; execute p",
    "explain (analyze, verbose, buffers) select * from {0}",
    "explain select * from {0}",
    "create temp table mine as select * from {0}; table mine",
    "create temp view mine as select * from {0}; table mine",
    "select * into temp mine from {0}; table mine",
    "do $$ declare x record; begin for x in select * from {0} loop raise notice '%', x; end loop; end $$",
    "create function pg_temp.f() returns setof text language sql as 'select x::text from {0} x'; select pg_temp.f()",
    "copy {0} to stdout",
    "copy (select * from {0}) to stdout",
    "select * from {0} for update",
    "select * from {0} for key share",
    "select pg_catalog.min(x::text) from {0} x",
)
COLUMN_READS = ("select {1} from {0}", "select count({1}) from {0}", "select from {0} order by {1}")
CHANGES = (
    "insert into {0} default values",
    "insert into {0} select * from {0}",
    "insert into {0} table {0} on conflict do nothing returning *",
    "delete from {0}",
    "delete from {0} returning *",
    "truncate {0}",
    "truncate {0} cascade",
    "copy {0} from stdin",
    "merge into {0} t using (select 1) s on true when matched then delete",
    "drop table {0}",
    "drop view {0} cascade",
    "alter table {0} disable row level security",
    "alter table {0} no force row level security",
    "alter table {0} owner to current_user",
    "alter table {0} rename to mine",
    "alter table {0} set schema pg_temp",
    "alter table {0} add column mine text",
    "alter view {0} reset (security_barrier)",
    "alter view {0} set (security_invoker = true)",
    "create policy mine on {0} using (true)",
    "drop policy service on {0}",
    "alter policy service on {0} to public using (true)",
    "create trigger mine before insert on {0} for each row execute function suppress_redundant_updates_trigger()",
    "create rule mine as on insert to {0} do instead nothing",
    "create rule mine as on select to {0} do also select 1",
    "create index on {0} ((1))",
    "create temp table mine () inherits ({0})",
    "comment on table {0} is 'mine'",
    "comment on view {0} is 'mine'",
    "security label on table {0} is 'mine'",
    "cluster {0}",
    "reindex table {0}",
    "refresh materialized view {0}",
    "create statistics mine on (1), (2) from {0}",
)
# PostgreSQL answers these with only a warning; the fingerprint shows that they changed nothing.
ONLY_WARNED = (
    "grant all on {0} to public",
    "grant select on {0} to current_user with grant option",
    "revoke all on {0} from oakleaf_service cascade",
    "analyze {0}",
)
LOCKS = tuple(
    f"lock table {{0}} in {mode} mode"
    for mode in ("row share", "share update exclusive", "share", "exclusive", "access exclusive")
)
FORGERIES = (
    "insert into oakleaf.public_input (session_id, text, number) values ('{own}', 'x', 1)",
    "insert into oakleaf.public_input (session_id, text, at) values ('{own}', 'x', 1)",
    "insert into oakleaf.public_input values ('{own}', 1, 1, 'x')",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', '')",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', null)",
    "insert into oakleaf.public_input (session_id, text) values (null, 'x')",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', repeat('x', 1000001))",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', E'\\u0000')",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', convert_from('\\x00', 'UTF8'))",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', convert_from('\\xff', 'UTF8'))",
    "insert into oakleaf.public_input (session_id, text) select '{own}', 'x' from generate_series(1, 1001)",
    "insert into oakleaf.public_input (session_id, text) values ('{hidden}', 'x') on conflict do nothing",
    "insert into oakleaf.public_input (session_id, text) values ('{own}', 'x') on conflict (number) do update set text = 'x'",
    "insert into oakleaf.public_input (session_id, text) overriding system value values ('{hidden}', 'x')",
    "insert into oakleaf.public_input (session_id, text) values ('{hidden}', 'x')",
    "insert into oakleaf.public_input (session_id, text) select '{hidden}', 'x' returning *",
    "with x as (insert into oakleaf.public_input (session_id, text) values ('{hidden}', 'x') returning *) table x",
    "insert into oakleaf.public_message (session_id, role, text) values ('{own}', 'assistant', 'x')",
    "insert into oakleaf.public_session (session_id, title) values ('{own}', 'x')",
    "insert into oakleaf.public_fact (session_id, number, kind) values ('{own}', 1, 'turn_ended')",
    "update oakleaf.public_input set text = 'x'",
    "update oakleaf.public_session set title = 'x', status = 'completed'",
    "delete from oakleaf.public_input",
    "insert into oakleaf.inbox (session_number, number, space, owner, body, at) values (1, 9, 'default', 'ann', '{{}}', 1)",
    "insert into oakleaf.inbox (session_number, number, space, owner, body, at) values (2, 9, 'default', 'bob', '{{}}', 1)",
    "insert into oakleaf.journal (session_number, number, space, kind, at) values (1, 99, 'default', 'turn_ended', 1)",
    "insert into oakleaf.login values ('oakleaf_person', 'default', 'bob')",
    "insert into oakleaf.entry (branch, seq, space, owner, turn, step, role, internal, entry_id, at, body) "
    "values (1, 99, 'default', 'ann', 1, 1, 'assistant', false, 'x', 1, '{{}}')",
    "insert into oakleaf.entry (branch, seq, space, owner, turn, step, role, internal, entry_id, at, body) "
    "values (1, 99, 'default', 'ann', 1, 1, 'system', true, 'x', 1, '{{}}')",
    "update oakleaf.session set branch = 1, seq = 1 where id = '{own}'",
    "update oakleaf.session set owner = 'ann' where id = '{hidden}'",
    "update oakleaf.entry set internal = false",
)
# {} is an id: the answer must be the same for another owner's session and for one that does not exist.
LOOKUPS = (
    "select * from oakleaf.own_messages('{}')",
    "select * from oakleaf.own_facts('{}', 0)",
    "select * from oakleaf.own_facts('{}', -9223372036854775808)",
    "select * from oakleaf.public_session where session_id = '{}'",
    "select * from oakleaf.public_message where session_id = '{}'",
    "select * from oakleaf.public_input where session_id like '{}%'",
    "insert into oakleaf.public_input (session_id, text) values ('{}', 'x')",
    "insert into oakleaf.public_input (session_id, text) values ('{}', '')",
    "insert into oakleaf.public_input (session_id, text) values ('{}', null) returning *",
    "insert into oakleaf.public_input (session_id, text) values ('{}', repeat('x', 1000001))",
    "select (oakleaf.own_messages('{}')).text::int / 0",
    "select 1 / count(*) from oakleaf.own_messages('{}')",
    "select oakleaf.match_words('{}'::tsquery, 0, 9, 9)",
    "select nextval('oakleaf.{}')",
    "select to_regclass('oakleaf.{}'), to_regrole('{}')",
)
PLANNED = ("select * from oakleaf.own_messages('{}')", "select * from oakleaf.own_facts('{}', 0)")
ROWS_READ = """
select relname::text, seq_tup_read, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
where schemaname = 'oakleaf' order by 1
"""
LEAK = """
create function pg_temp.leak(anyelement) returns boolean language plpgsql cost 0.0000001 as
$f$ begin raise notice 'saw %', $1; return true; end $f$;
"""
PREDICATES = (
    "select * from {0} x where pg_temp.leak(x)",
    "select count(*) from {0} x where pg_temp.leak(x::text) and session_id = 'nobody'",
    "select * from {0} x order by pg_temp.leak(x::text)",
    "select pg_temp.leak(x::text), count(*) from {0} x group by 1 having bool_and(pg_temp.leak(x::text))",
    "select * from {0} x join lateral (select pg_temp.leak(x::text)) y on true",
    "select * from {0} x where x::text::xml is document",
    "select * from {0} x where x::text::int = 1",
    "select * from {0} x where 1 / (length(x::text) - length(x::text)) = 1",
    "select * from {0} x where x::text ~ '('",
    "select * from {0} x where set_config('mine.seen', x::text, false) is null; select current_setting('mine.seen', true)",
    "select * from {0} x where case when x::text like '%leaked%' then 1 / 0 = 1 else false end",
    "select * from {0} x where x::text > 'a' offset 0",
    "select lo_from_bytea(0, convert_to(x::text, 'UTF8')) from {0} x",
    "select pg_notify('mine', x::text) from {0} x",
)
SETTINGS = (
    "set row_security = off",
    "set search_path = pg_temp, oakleaf",
    "set standard_conforming_strings = off",
    "set transform_null_equals = on",
    "set plan_cache_mode = force_generic_plan",
    "set client_min_messages = debug5; set debug_print_plan = on; set debug_print_parse = on",
    "set debug_print_rewritten = on; set client_min_messages = log",
    "set enable_indexscan = off; set enable_bitmapscan = off; set enable_seqscan = off",
    "set constraint_exclusion = on; set from_collapse_limit = 1; set join_collapse_limit = 1",
    "set bytea_output = escape; set xmlbinary = hex; set datestyle = german",
    "set default_transaction_isolation = serializable",
    "set transaction_read_only = on",
    "set quote_all_identifiers = on",
    "set check_function_bodies = off",
    "set plpgsql.extra_errors = 'all'; set plpgsql.extra_warnings = 'all'",
    "set jit = on; set jit_above_cost = 0",
    "set role none",
    "reset role",
    "set role oakleaf_client",
    "reset session authorization",
    "reset all",
    "create temp table session (id text); create temp table entry (x int); create temp table me (space text)",
    "create domain pg_temp.json as text check (1 / 0 = 1)",
    "create domain pg_temp.regrole as text",
    "create function pg_temp.message_text(bytea) returns text language sql as 'select $1::text'",
    "create function pg_temp.current_setting(text, boolean) returns text language sql as 'select ''bob'''",
    "create function pg_temp.coalesce(text, text) returns text language sql as 'select ''bob'''",
    "create function pg_temp.same(text, text) returns boolean language sql as 'select true'; "
    "create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.same)",
)
PRIVILEGES = (
    *(
        f"set role {name}"
        for name in ("oakleaf_service", "oakleaf_app", "postgres", "pg_read_all_data", "pg_monitor")
    ),
    *(f"set session authorization {name}" for name in ("oakleaf_app", "postgres", "oakleaf_plain")),
    *(f"grant {name} to current_user" for name in ("oakleaf_service", "pg_read_all_data", "oakleaf_app")),
    *(f"alter role {name} superuser" for name in ("current_user", "oakleaf_client", "oakleaf_app")),
    "alter role oakleaf_app password 'x'",
    "alter role oakleaf_client set oakleaf.owner = 'bob'",
    "create role mine",
    "drop role oakleaf_service",
    "reassign owned by oakleaf_service to current_user",
    "drop owned by oakleaf_service",
    "alter default privileges for role postgres grant select on tables to public",
    "create schema mine",
    "create table oakleaf.mine (x int)",
    "create view oakleaf.mine as select 1",
    "create function oakleaf.mine() returns int language sql as 'select 1'",
    "create or replace function oakleaf.message_text(bytea) returns text language sql return 'x'",
    "create or replace view oakleaf.caller as select 'default' as space, 'bob' as owner",
    "alter function oakleaf.own_sessions() security invoker",
    "alter function oakleaf.own_sessions() reset all",
    "drop function oakleaf.own_sessions() cascade",
    "alter schema oakleaf owner to current_user",
    "drop schema oakleaf cascade",
    "alter sequence oakleaf.session_number restart",
    "select setval('oakleaf.session_number', 1)",
    "select nextval('oakleaf.branch_id')",
    "select currval('oakleaf.session_number')",
    "select last_value from oakleaf.session_number",
    "create event trigger mine on ddl_command_start execute function suppress_redundant_updates_trigger()",
    "create extension dblink",
    "create extension file_fdw",
    "create extension pageinspect",
    "create extension postgres_fdw",
    "create foreign data wrapper mine",
    "create language plpython3u",
    "create publication mine for all tables",
    "create subscription mine connection 'dbname=postgres' publication mine",
    "create tablespace mine location '/tmp'",
    "create cast (text as int) without function",
    "create operator class mine default for type text using btree as storage text",
    "create database mine",
    "alter system set log_statement = 'all'",
    "alter database postgres set row_security = off",
    "load 'auto_explain'",
    "set session_replication_role = replica",
    "set log_executor_stats = on",
    "set log_statement = 'all'",
    "set track_functions = 'all'",
    "select pg_read_file('postgresql.conf')",
    "select pg_read_binary_file('PG_VERSION')",
    "select pg_ls_dir('.')",
    "select pg_stat_file('PG_VERSION')",
    "select pg_ls_waldir()",
    "select pg_ls_logdir()",
    "select pg_current_logfile()",
    "select lo_import('/etc/passwd')",
    "select lo_export(1, '/tmp/mine')",
    "select * from pg_largeobject",
    "select * from pg_authid",
    "select * from pg_statistic",
    "select * from pg_statistic_ext_data",
    "select * from pg_user_mapping",
    "select * from pg_subscription",
    "select * from pg_hba_file_rules",
    "select * from pg_stat_statements",
    "copy (select 1) to '/tmp/mine'",
    "copy (select 1) to program 'id'",
    "copy oakleaf.public_input (session_id, text) from '/etc/passwd'",
    "select pg_reload_conf()",
    "select pg_rotate_logfile()",
    "select pg_switch_wal()",
    "select pg_create_restore_point('mine')",
    "select pg_create_physical_replication_slot('mine')",
    "select pg_create_logical_replication_slot('mine', 'test_decoding')",
    "select pg_log_backend_memory_contexts(pg_backend_pid())",
    "select pg_stat_reset()",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'oakleaf_app'",
    "select pg_cancel_backend(pid) from pg_stat_activity where usename = 'oakleaf_app'",
    "select oakleaf.message_text('x'::bytea)",
    "select oakleaf.queue_input()",
    "select oakleaf.grant_client('oakleaf_person')",
    "select oakleaf.bind('oakleaf_person', 'default', 'bob')",
    "select oakleaf.unbind('oakleaf_person')",
    "create temp table x (session_id text, text text); create trigger t before insert on x for each row "
    "execute function oakleaf.queue_input()",
)
ARGUMENTS = (
    *("null", "''", "'%'", "'_'", "'ses_%'", "' '", "'ses_own00000000000000 '", "'SES_OWN00000000000000'"),
    *(
        "'ses_leaked00000000000001'",
        "'ses_leaked00000000000002'",
        "'ses_leaked00000000000003'",
        "repeat('x', 9999999)",
    ),
    *(
        "$x$' or true --$x$",
        "$x$\\$x$",
        "E'\\uFFFF'",
        "chr(1)",
        "(select string_agg(x::text, '') from pg_class x)",
    ),
    *(
        "(select session_id from oakleaf.public_session)",
        "current_setting('oakleaf.space')",
        "session_user::text",
    ),
)
SEARCHES = ("leakedforeign", "b1", "!x", "!leaked", "x:*", "a:*", "s:*", "!a <-> !b", "!(a & !a)")
IDENTITY = "select set_config('oakleaf.space', 'default', true), set_config('oakleaf.owner', 'ann', true)"
TOAST = """
select toast.relname from pg_class x join pg_class toast on toast.oid = x.reltoastrelid
where x.relnamespace = 'oakleaf'::regnamespace
"""
CATALOGS = """
select oid::regclass::text from pg_class
where relnamespace in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) and relkind in ('r', 'v')
order by 1
"""
# Creates a session in the attacker's own space with the id of another session.
REUSED_ID = """
insert into oakleaf.session select (jsonb_populate_record(null::oakleaf.session, jsonb_build_object(
    'number', 999999, 'id', '{0}', 'space', 'third', 'conversation_id', 'c', 'status', 'idle', 'branch', 1, 'seq', 0,
    'seed_count', 0, 'turns', 0, 'calls', 0, 'input_tokens', 0, 'output_tokens', 0, 'cache_read_tokens', 0,
    'cache_write_tokens', 0, 'cost_microcents', 0, 'unpriced_calls', 0, 'unknown_calls', 0, 'facts', 1, 'fence', 0,
    'started_at', 1, 'updated_at', 1))).*
"""
CLASHES = (
    "insert into oakleaf.inbox (session_number, number, space, body, at) values (-1, 1, 'third', 'x', 1)",
    "insert into oakleaf.inbox (session_number, number, space, body, at) values (1, 1, 'third', 'x', 1)",
    "insert into oakleaf.blob_use values (1, 1, -1, 'third')",
    "insert into oakleaf.journal (session_number, number, space, kind, at) values (1, 1, 'third', 'x', 1)",
    "insert into oakleaf.journal (session_number, number, space, kind, at) values (1, 1, 'default', 'x', 1) on conflict do nothing",
    "insert into oakleaf.entry (branch, seq, space, turn, step, internal, entry_id, at, body) "
    "values (1, 1, 'third', 1, 1, true, 'x', 1, 'x')",
    "insert into oakleaf.draft values (1, 'third', 1, 1, 1, 'x', 1) on conflict (session_number) do update set at = 1 returning *",
    "insert into oakleaf.session_detail values (1, 'third') on conflict (session_number) do update set space = 'third' returning *",
    "insert into oakleaf.search_progress values (1, 'default', 1, 'x')",
    "update oakleaf.session set space = 'third'",
    "update oakleaf.lock set number = number + 5000",
    "delete from oakleaf.lock",
    "insert into oakleaf.migration values (99)",
    "insert into oakleaf.login values ('oakleaf_person', 'default', 'bob')",
)
