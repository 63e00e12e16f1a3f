-- Comparator: the usual fixed-window function (SEEDS.md 2), told in our words: count first, compare after.
--
-- What it gets wrong, on purpose: the epoch is rounded where it should be floored, so a window has two counters, one for the
-- first and one for the second half of each second; refused calls count; the window's length is no part of the key;
-- now() is the start of the transaction; a security definer without a fixed search_path, executable by everyone.
-- As costly as the original: one upsert per call, a row per window, the same primary key. Its second index is left out,
-- because PostgreSQL refuses to make it (now() in a predicate). User ids are text where it has uuid.
create table if not exists usual_quota_window (
  user_id      text not null,
  route        text not null,
  window_start timestamptz not null,
  used         integer not null default 0,
  primary key (user_id, route, window_start)
);

-- The start of the window p_now lies in, with the mistake. Inlined, so it costs what it would in place.
create or replace function usual_quota_start(p_now timestamptz, p_window_sec integer) returns timestamptz
language sql stable as $$
  select date_trunc('second', p_now) - make_interval(secs => extract(epoch from p_now)::integer % p_window_sec)
$$;

create or replace function usual_quota(p_user_id text, p_route text, p_limit integer, p_window_sec integer)
returns boolean
language plpgsql security definer as $$
declare
  v_start timestamptz := usual_quota_start(now(), p_window_sec);
  v_used  integer;
begin
  insert into usual_quota_window as w (user_id, route, window_start, used)
  values (p_user_id, p_route, v_start, 1)
  on conflict (user_id, route, window_start) do update set used = w.used + 1
  returning w.used into v_used;
  if v_used > p_limit then
    return false;
  end if;
  return true;
end
$$;
