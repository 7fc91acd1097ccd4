-- When a session was last active, which lists are sorted by: the last input or move of the leaf, and within a run the last
-- step to a minute. A step that does not change it leaves every index alone.
-- Generated at first, because row level security hides every session from an update by the owner.
alter table session add column if not exists active_at bigint not null generated always as (updated_at) stored;
alter table session alter column active_at drop expression if exists;
create index if not exists session_by_activity on session (space, active_at, no);
