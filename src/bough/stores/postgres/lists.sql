-- Indexes for the lists people ask for, each in the order of last activity, and for money by day.
-- Statuses that most sessions have are found fast without an index, and would change it twice a turn.
create index if not exists session_by_status on session (space, status, active_at, no)
    where status not in ('idle', 'completed');
create index if not exists session_by_agent on session (space, agent, active_at, no) where agent is not null;
create index if not exists session_by_owner_activity on session (space, owner, active_at, no) where owner is not null;
-- Calls are appended in the order of time, so a summary per block range is enough: a few kB for millions of calls.
create index if not exists usage_by_time on usage using brin (at) with (pages_per_range = 16);

-- The policies compare nullif(space, ''), of which PostgreSQL knows nothing: it expects a row in two hundred, and so reads
-- all of them rather than the first page of an index. With these it knows how many spaces there are.
create statistics if not exists session_space on (nullif(space, '')) from session;
create statistics if not exists search_space on (nullif(space, '')) from search;
create statistics if not exists usage_space on (nullif(space, '')) from usage;
analyze session, search, usage;
