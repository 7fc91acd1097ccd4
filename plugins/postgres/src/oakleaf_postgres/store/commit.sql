-- What the store sends for a change: one statement, one round trip.
--
-- `head` advances the session's row if every condition of the change holds. The other parts write what belongs to that row,
-- so nothing is written if one condition does not hold.
--
-- Lines below `--? NAME` are sent for a change whose `Shape` has that property, down to the next `--?`; `--? always` are
-- sent for every change. `commit.py` fills in the {braces}: rows of values, the columns that the change sets, what an engine
-- adds, and {in_space}, which binds a part that reads a table to the tenant. %(name)s is a value.

with
--? has_started_call
-- A started call is counted already: what it counted is subtracted. It is read before the session is locked, so the
-- number of facts must still be the one that was read with it; if another writer came between, nothing is written.
started as materialized (
    select session.facts as known_facts, call.*
    from oakleaf.session left join lateral (
        select number, 1 as calls,
               coalesce(input_tokens, 0) as input_tokens,
               coalesce(output_tokens, 0) as output_tokens,
               coalesce(cache_read_tokens, 0) as cache_read_tokens,
               coalesce(cache_write_tokens, 0) as cache_write_tokens,
               coalesce(cost_microcents, 0) as cost_microcents,
               (cost_microcents is null)::integer as unpriced_calls,
               (input_tokens is null and output_tokens is null)::integer as unknown_calls
        from oakleaf.usage
        where usage.session_number = session.number and usage.call_id = %(call_call_id_0)s
        order by number desc limit 1
    ) as call on true
    where {in_space} and session.id = %(id)s
),
--? always
head as (
    update oakleaf.session
    set facts = session.facts + %(new_facts)s,
        updated_at = %(at)s,
        turns = session.turns + %(new_turns)s
--? is_activity
        , active_at = case when session.active_at < %(inactive_before)s then %(activity)s else session.active_at end
--? has_new_totals
        , calls = session.calls + %(new_calls)s
        , input_tokens = session.input_tokens + %(new_input_tokens)s
        , output_tokens = session.output_tokens + %(new_output_tokens)s
        , cache_read_tokens = session.cache_read_tokens + %(new_cache_read_tokens)s
        , cache_write_tokens = session.cache_write_tokens + %(new_cache_write_tokens)s
        , cost_microcents = session.cost_microcents + %(new_cost_microcents)s
        , unpriced_calls = session.unpriced_calls + %(new_unpriced_calls)s
        , unknown_calls = session.unknown_calls + %(new_unknown_calls)s
--? has_started_call
        , calls = session.calls + %(new_calls)s - coalesce(started.calls, 0)
        , input_tokens = session.input_tokens + %(new_input_tokens)s - coalesce(started.input_tokens, 0)
        , output_tokens = session.output_tokens + %(new_output_tokens)s - coalesce(started.output_tokens, 0)
        , cache_read_tokens = session.cache_read_tokens + %(new_cache_read_tokens)s - coalesce(started.cache_read_tokens, 0)
        , cache_write_tokens = session.cache_write_tokens + %(new_cache_write_tokens)s - coalesce(started.cache_write_tokens, 0)
        , cost_microcents = session.cost_microcents + %(new_cost_microcents)s - coalesce(started.cost_microcents, 0)
        , unpriced_calls = session.unpriced_calls + %(new_unpriced_calls)s - coalesce(started.unpriced_calls, 0)
        , unknown_calls = session.unknown_calls + %(new_unknown_calls)s - coalesce(started.unknown_calls, 0)
--? always
        {columns}
--? has_tags
        , tags = pg_catalog.jsonb_strip_nulls(coalesce(session.tags, '{{}}') || %(tags)s::text::jsonb)
--? opens_branch
        , branch = pg_catalog.nextval('oakleaf.branch_id'), seq = %(last_seq)s
--? extends_branch
        , seq = %(last_seq)s
--? only_moves
        , branch = %(to_branch)s, seq = %(to_seq)s
--? has_started_call
    from started
--? always
    where {in_space} and {for_write} {guard}
      and session.id = %(id)s
      and session.trashed_at is null
--? is_owned
      and session.owner = %(owner)s
--? has_leaf
      and session.branch = %(after_branch)s and session.seq = %(after_seq)s
--? is_fenced
      and session.fence = %(fence)s
--? needs_free
      and (session.holder is null or coalesce(session.lease_until, 0) <= %(at)s + {clock_lead})
--? checks_branch
-- The leaf is the last entry of a branch of this session's own. Asked of the leaf that is expected and not of the row's: so
-- it is two probes of an index, where a join would walk the whole branch. Not asked when the branch is known to be its own:
-- if it has entries after the leaf, the primary key of the first new one refuses.
      and session.number = (
          select session_number from oakleaf.branch where {in_space} and branch.id = %(after_branch)s)
      and not exists (
          select 1 from oakleaf.entry
          where {in_space} and entry.branch = %(after_branch)s and entry.seq = %(next_seq)s)
--? moves
-- The position to move to is an entry, or the beginning of a branch.
      and (exists (
              select 1 from oakleaf.entry
              where {in_space} and entry.branch = %(to_branch)s and entry.seq = %(to_seq)s)
          or exists (
              select 1 from oakleaf.branch
              where {in_space} and branch.id = %(to_branch)s and branch.parent_seq = %(to_seq)s))
--? has_started_call
      and session.facts = started.known_facts
--? always
    returning session.number, session.space, session.owner, session.branch, session.seq, session.facts, session.calls
)
--? opens_branch
, branch as (
    insert into oakleaf.branch (id, space, session_number, parent, parent_seq)
    select branch, space, number, %(parent_branch)s::bigint, %(parent_seq)s::bigint from head
)
--? entries
, entries as (
    insert into oakleaf.entry (
        branch, space, owner, seq, turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body)
    select head.branch, head.space, head.owner, new.* from head cross join (values {entry_rows}) as new
)
--? tool_calls
, tool_calls as (
    insert into oakleaf.tool_call (branch, space, hash, seq)
    select head.branch, head.space, new.* from head cross join (values {tool_call_rows}) as new
)
--? calls
-- Numbered back from the last one, whose number the advanced row holds.
, calls as (
    insert into oakleaf.usage (
        session_number, space, owner, branch, number, call_id, after_seq, answer_seq, at,
        input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
        purpose, bucket, provider, model, cost_microcents, price_version, failed)
    select head.number, head.space, head.owner, head.branch, head.calls + new.number,
           new.call_id, new.after_seq, new.answer_seq, new.at,
           new.input_tokens, new.output_tokens, new.cache_read_tokens, new.cache_write_tokens,
           new.purpose, new.bucket, new.provider, new.model, new.cost_microcents, new.price_version, new.failed
    from head cross join (values {call_rows}) as new (
        number, call_id, branch, after_seq, answer_seq, at,
        input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
        purpose, bucket, provider, model, cost_microcents, price_version, failed)
--? replaces_call
    cross join started where started.number is null
--? calls
)
--? replaces_call
, replaced as (
    update oakleaf.usage
    set branch = head.branch, call_id = %(call_call_id_0)s, after_seq = %(call_after_seq_0)s,
        answer_seq = %(call_answer_seq_0)s, at = %(call_at_0)s,
        input_tokens = %(call_input_tokens_0)s, output_tokens = %(call_output_tokens_0)s,
        cache_read_tokens = %(call_cache_read_tokens_0)s, cache_write_tokens = %(call_cache_write_tokens_0)s,
        purpose = %(call_purpose_0)s, bucket = %(call_bucket_0)s,
        provider = %(call_provider_0)s, model = %(call_model_0)s,
        cost_microcents = %(call_cost_microcents_0)s, price_version = %(call_price_version_0)s,
        failed = %(call_failed_0)s
    from head cross join started
    where {in_space} and usage.session_number = head.number and usage.number = started.number
)
--? drops_call
-- Rows have the numbers up to the session's count of calls, so those after a dropped one close up: each takes the content
-- of the next, because two parts of a statement may not touch one row, and the last one is deleted.
, closed_up as (
    update oakleaf.usage
    set call_id = next.call_id, branch = next.branch, after_seq = next.after_seq, answer_seq = next.answer_seq,
        at = next.at, input_tokens = next.input_tokens, output_tokens = next.output_tokens,
        cache_read_tokens = next.cache_read_tokens, cache_write_tokens = next.cache_write_tokens,
        purpose = next.purpose, bucket = next.bucket, provider = next.provider, model = next.model,
        cost_microcents = next.cost_microcents, price_version = next.price_version, failed = next.failed
    from head cross join started join oakleaf.usage as next on next.session_number = head.number
    where {in_space} and usage.session_number = head.number and usage.number >= started.number
      and next.number = usage.number + 1
), dropped as (
    delete from oakleaf.usage using head
    where {in_space} and usage.session_number = head.number and usage.number = head.calls + 1
)
--? takes_input
, input as (
    delete from oakleaf.inbox using head
    where {in_space} and inbox.session_number = head.number and inbox.number = %(input)s
    returning inbox.key
)
--? always
-- Numbered back from the last one, too. The first one is the change's own: it has the key, and the leaf after the change.
, facts as (
    insert into oakleaf.journal (
        session_number, number, space, owner, kind, key, first_seq, data, at, branch, last_seq, input_key)
    select head.number, head.facts + new.number, head.space, head.owner,
           new.kind, new.key, new.first_seq, new.data, %(at)s::bigint,
--? has_leaf
           case when new.key is not null then head.branch end,
           case when new.key is not null then head.seq end,
--? not has_leaf
           null::bigint, null::bigint,
--? takes_input
           case when new.key is not null then (select key from input) end
--? not takes_input
           null
--? always
    from head cross join (values {fact_rows}) as new (number, kind, key, first_seq, data)
)
--? drops_draft
, draft as (
    delete from oakleaf.draft using head where {in_space} and draft.session_number = head.number
)
--? has_state
, state as (
    update oakleaf.session_detail set state = %(state)s from head
    where {in_space} and session_detail.session_number = head.number
)
--? always
select branch, seq, facts {effect} from head
