-- The SQL doors: rate limits as plain functions, for people who have only PostgreSQL.
--
--   check_rate_limit(p_key, p_limit, p_window_seconds)                -> (allowed, current_count, retry_after)   sliding
--   check_and_consume_quota(p_user_id, p_route, p_limit, p_window_sec) -> boolean                                 fixed
--   check_and_increment_usage(p_key, p_day, p_amount, p_limit)        -> (allowed, count)                        daily
--   cleanup_old_rate_limit_buckets()                                  -> integer                                 now and then
--
-- They have counters of their own: nothing here reads or writes what the Tollgate service counts.
-- What is not named above is private.
--
-- To install: set search_path to a schema and pg_temp, then run this file in one transaction, as the role that owns the schema.
-- To use:     grant usage on the schema, and execute on the functions, to whoever calls them. A caller needs no right on the
--             tables: the functions run as their owner, with a fixed search_path. Who may call them may name any key.
-- May be run again over itself. PostgreSQL 13 or later.
--
-- Exact: one call locks one row, the row of its key, and holds it until its transaction ends. Whoever waits for it decides
-- on what it finds then, at the time it is then. A refusal locks and writes nothing (unless it lost a race to the last unit).
-- Under repeatable read and serializable a call may end in a serialization failure (40001), as any write there; it never over-admits.
--
-- Lock order: a key's row, then its chunks; cleanup takes only rows nobody holds, then door_floor by (door, window_seconds).
-- So single calls cannot deadlock. Who checks several keys in one transaction should do so in one order everywhere.
--
-- Time: seconds and microseconds since the epoch, in integers, from this server's clock, read by a statement behind the one
-- that took the lock. A key's time never goes back: what is stored (and, for a key that was removed, door_floor) is its
-- lower bound, so a clock that steps back mints no credit.

do $$
begin
  -- The functions keep the search_path they are created under. One in which others may create objects, or which does not
  -- name pg_temp last (it is then searched first), would let a caller put tables of his own under a security definer.
  if current_schema() is null or current_schema() ~ '^pg_'
      or current_setting('search_path') !~ '^\s*("([^"]|"")+"|[^",]+)\s*,\s*"?pg_temp"?\s*$' then
    raise exception using errcode = '22023',
      message = format('search_path is %s; the doors need it to be one schema, then pg_temp', current_setting('search_path')),
      hint = 'Run: create schema if not exists tollgate; set search_path = tollgate, pg_temp;';
  end if;
end
$$;

-- One row per key and window length of check_rate_limit. Only unindexed columns ever change on the hot path, and pages are
-- kept part empty, so updates are HOT.
--
-- An entry is a second in which something was counted, with the total of all units the key ever counted, through that
-- second. With running totals nothing is ever summed: what has left is the total at the last entry that has left.
create table if not exists door_sliding (
  key            text collate "C" not null,
  window_seconds integer  not null,
  latest_us      bigint   not null, -- when a unit was last counted
  used           integer  not null, -- units in the window at that time; never fewer than there are now
  total          bigint   not null, -- units ever counted
  base_total     bigint   not null, -- the total before the first entry here
  spilled_second bigint,            -- the last second that stands in a chunk; null: none does
  seconds        bigint[] not null, -- the entries, oldest first: at most 64, older ones stand in chunks
  totals         bigint[] not null,
  sweep_s        bigint   not null, -- when cleanup has a look; raised by cleanup alone
  primary key (key, window_seconds)
) with (fillfactor = 60);
create index if not exists door_sliding_sweep_s on door_sliding (sweep_s);

-- Sixty-four older entries each, for windows that hold more seconds than a row should. Written once, removed once.
create table if not exists door_sliding_chunk (
  key            text collate "C" not null,
  window_seconds integer  not null,
  last_second    bigint   not null,
  base_total     bigint   not null, -- the total before the first entry
  last_total     bigint   not null,
  seconds        bigint[] not null,
  totals         bigint[] not null,
  primary key (key, window_seconds, last_second)
);

-- One row per user, route and window length of check_and_consume_quota: the latest window, and what was used in it.
create table if not exists door_fixed (
  user_id        text collate "C" not null,
  route          text collate "C" not null,
  window_seconds integer not null,
  window_number  bigint  not null, -- windows since the epoch
  used           integer not null,
  sweep_s        bigint  not null, -- as in door_sliding
  primary key (user_id, route, window_seconds)
) with (fillfactor = 60);
create index if not exists door_fixed_sweep_s on door_fixed (sweep_s);

-- One row per day and key of check_and_increment_usage. The day first: cleanup goes by it.
create table if not exists door_daily (
  day  date not null,
  key  text collate "C" not null,
  used integer not null,
  primary key (day, key)
) with (fillfactor = 60);

-- Where time begins for a key without a row: the latest end of what cleanup removed, by window length. Not cleanup's own
-- clock: one that was ahead would hold up every new key.
create table if not exists door_floor (
  door           text    not null check (door in ('sliding', 'fixed', 'daily')),
  window_seconds integer not null,
  floor_s        bigint  not null,
  primary key (door, window_seconds)
);

revoke all on table door_sliding, door_sliding_chunk, door_fixed, door_daily, door_floor from public;

-- Purpose:    the one place that reads the clock. Tests put another in its place.
-- Parameters: none.
-- Result:     microseconds since the epoch. The product is whole also where extract gives a float (before PostgreSQL 14):
--             the cast rounds to the microsecond it stands for, and never to another.
-- Locks:      none. Index: none.
-- Invoker's rights and no search_path of its own, so that it is inlined; it names nothing outside pg_catalog, and only the
-- doors may call it.
create or replace function door_now_us() returns bigint
language sql volatile as $$
  select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint
$$;
revoke execute on function door_now_us() from public;

-- Purpose:    raises if a text parameter is null, empty or too long for an index.
-- Parameters: p_name, how the parameter is called; p_value.
-- Result:     none. Locks: none. Index: none.
create or replace function door_require_text(p_name text, p_value text) returns void
language plpgsql stable set search_path from current as $$
begin
  if p_value is null then
    raise exception using errcode = '22023', message = p_name || ' is null',
      hint = 'Say who or what is counted; any string of 1 to 1024 bytes will do.';
  elsif p_value = '' then
    raise exception using errcode = '22023', message = p_name || ' is empty',
      hint = 'Say who or what is counted; any string of 1 to 1024 bytes will do.';
  elsif octet_length(p_value) > 1024 then
    raise exception using errcode = '22023',
      message = format('%s is %s bytes long; at most 1024 are possible', p_name, octet_length(p_value)),
      hint = 'Pass a hash of it instead, for example encode(sha256(convert_to(value, ''utf8'')), ''hex'').';
  end if;
end
$$;
revoke execute on function door_require_text(text, text) from public;

-- Purpose:    raises if a number parameter is null, zero or negative.
-- Parameters: p_name, how the parameter is called; p_value.
-- Result:     none. Locks: none. Index: none.
create or replace function door_require_count(p_name text, p_value integer) returns void
language plpgsql stable set search_path from current as $$
begin
  if p_value is null or p_value < 1 then
    raise exception using errcode = '22023',
      message = format('%s is %s; it must be 1 or more', p_name, coalesce(p_value::text, 'null')),
      hint = case p_name
        when 'p_limit' then 'To refuse everything, do not ask.'
        when 'p_amount' then 'Nothing can be given back here, and nothing asked for at no cost.'
        else 'Windows are whole seconds, one at least.'
      end;
  end if;
end
$$;
revoke execute on function door_require_count(text, integer) from public;

-- Purpose:    counts one unit if at most p_limit then lie in every interval of p_window_seconds: a real sliding window.
--             Units are kept by the second, and a second counts until its end has left the window: nothing leaves early,
--             and a unit may count up to a second longer than the window.
-- Parameters: p_key, what is counted, 1 to 1024 bytes; p_limit and p_window_seconds, 1 or more. The window's length is part
--             of the key; the limit is not, and may change from call to call.
-- Result:     one row. allowed; current_count, the units in the window with this one if it is allowed; retry_after, 0 if
--             allowed, else the whole seconds, rounded up, until so much has left that one more fits.
-- Locks:      the key's row, until the transaction ends; none if refused.
-- Index:      door_sliding_pkey, door_sliding_chunk_pkey. At most one row of each is read, whatever the window, but by a
--             refusal under a lowered limit, which passes the chunks that have to leave.
create or replace function check_rate_limit(p_key text, p_limit integer, p_window_seconds integer)
returns table (allowed boolean, current_count integer, retry_after integer)
language plpgsql security definer rows 1 set search_path from current as $$
declare
  v_latest_us      bigint;
  v_total          bigint;
  v_base_total     bigint;
  v_spilled_second bigint;
  v_seconds        bigint[];
  v_totals         bigint[];
  v_locked         boolean;
  v_has_room       boolean := false; -- a look without the lock has shown that something has left
  v_clock_us       bigint;
  v_live_from      bigint;           -- seconds before this one have left
  v_left           integer;          -- entries of the row that have left
  v_gone           bigint;           -- the total at the last entry that has left
  v_second         bigint;
  v_entries        integer;
begin
  -- One test on the way through; which parameter it was is found out after.
  if (p_key <> '' and octet_length(p_key) <= 1024 and p_limit > 0 and p_window_seconds > 0) is not true then
    perform door_require_text('p_key', p_key);
    perform door_require_count('p_limit', p_limit);
    perform door_require_count('p_window_seconds', p_window_seconds);
  end if;

  -- Usually one round. A second if the key is new, or was full and something has left; more only if cleanup or a rollback
  -- removes the row in between.
  for v_round in 1..10 loop
    -- A row that was full when it was last written is not locked: a refusal then leaves no trace, and waits for nobody.
    select d.latest_us, d.total, d.base_total, d.spilled_second, d.seconds, d.totals
    into v_latest_us, v_total, v_base_total, v_spilled_second, v_seconds, v_totals
    from door_sliding d
    where d.key = p_key and d.window_seconds = p_window_seconds and (d.used < p_limit or v_has_room)
    for update;
    v_locked := found;
    if not v_locked then
      select d.latest_us, d.total, d.base_total, d.spilled_second, d.seconds, d.totals
      into v_latest_us, v_total, v_base_total, v_spilled_second, v_seconds, v_totals
      from door_sliding d
      where d.key = p_key and d.window_seconds = p_window_seconds;
      if not found then
        -- An empty row to lock, because an insert may wait for another one, and the time is known only after.
        insert into door_sliding (key, window_seconds, latest_us, used, total, base_total, seconds, totals, sweep_s)
        select p_key, p_window_seconds,
          coalesce((select f.floor_s * 1000000 from door_floor f
                    where f.door = 'sliding' and f.window_seconds = p_window_seconds), 0),
          0, 0, 0, '{}', '{}', door_now_us() / 1000000 + p_window_seconds + 3601
        on conflict (key, window_seconds) do nothing;
        continue;
      end if;
    end if;

    v_clock_us := door_now_us();
    v_latest_us := greatest(v_latest_us, v_clock_us);
    -- The last microsecond of a second is the one that has to be a window old, hence + 1.
    v_live_from := (v_latest_us + 1) / 1000000 - p_window_seconds;
    if v_live_from <= v_spilled_second then
      -- Chunks are older than the row's entries, so none of those has left.
      v_left := 0;
      v_gone := (
        select coalesce(c.totals[width_bucket(v_live_from - 1, c.seconds)], c.base_total)
        from door_sliding_chunk c
        where c.key = p_key and c.window_seconds = p_window_seconds and c.last_second >= v_live_from
        order by c.last_second
        limit 1
      );
    else
      v_left := width_bucket(v_live_from - 1, v_seconds);
      v_gone := coalesce(v_totals[v_left], v_base_total);
    end if;

    if v_total - v_gone < p_limit then
      exit when v_locked;
    else
      -- The first second by whose end enough has left.
      if v_total - p_limit >= v_base_total then
        v_second := v_seconds[width_bucket(v_total - p_limit, v_totals) + 1];
      else
        v_second := (
          select c.seconds[width_bucket(v_total - p_limit, c.totals) + 1]
          from door_sliding_chunk c
          where c.key = p_key and c.window_seconds = p_window_seconds
            and c.last_second >= v_live_from and c.last_total > v_total - p_limit
          order by c.last_second
          limit 1
        );
      end if;
      if v_gone is not null and v_second is not null then
        allowed := false;
        current_count := v_total - v_gone;
        -- From the clock, not from the key's time: it is the clock that has to get there.
        retry_after := least(v_second + p_window_seconds + 1 - (v_clock_us + 1) / 1000000, 2147483647);
        return next;
        return;
      end if;
      -- A chunk went between two looks without the lock; under it, none can.
      if v_locked then
        raise exception using errcode = 'XX001', message = format('door_sliding_chunk has lost entries of %L', p_key);
      end if;
    end if;
    v_has_room := true;
  end loop;
  if not v_locked then
    raise exception using errcode = '40001', message = 'the row of p_key could not be locked', hint = 'Try again.';
  end if;

  v_second := v_latest_us / 1000000;
  v_total := v_total + 1;
  if v_left > 0 then
    v_seconds := v_seconds[v_left + 1:];
    v_totals := v_totals[v_left + 1:];
    v_base_total := v_gone;
  end if;
  v_entries := cardinality(v_seconds);
  if v_seconds[v_entries] = v_second then
    v_totals[v_entries] := v_total;
  elsif v_entries < 64 then
    v_seconds := v_seconds || v_second;
    v_totals := v_totals || v_total;
  else
    insert into door_sliding_chunk (key, window_seconds, last_second, base_total, last_total, seconds, totals)
    values (p_key, p_window_seconds, v_seconds[64], v_base_total, v_totals[64], v_seconds, v_totals);
    v_base_total := v_totals[64];
    v_spilled_second := v_seconds[64];
    v_seconds := array[v_second];
    v_totals := array[v_total];
    -- More go than come, so what has left dwindles, a few at a time.
    delete from door_sliding_chunk c
    where c.key = p_key and c.window_seconds = p_window_seconds and c.last_second in (
      select o.last_second from door_sliding_chunk o
      where o.key = p_key and o.window_seconds = p_window_seconds and o.last_second < v_live_from
      order by o.last_second
      limit 4
    );
  end if;
  update door_sliding d
  set latest_us = v_latest_us, used = v_total - v_gone, total = v_total, base_total = v_base_total,
    spilled_second = v_spilled_second, seconds = v_seconds, totals = v_totals
  where d.key = p_key and d.window_seconds = p_window_seconds;
  allowed := true;
  current_count := v_total - v_gone;
  retry_after := 0;
  return next;
end
$$;
revoke execute on function check_rate_limit(text, integer, integer) from public;

-- Purpose:    counts one unit if at most p_limit then lie in the window: fixed windows of p_window_sec from the epoch. Twice
--             p_limit can pass around a boundary; where that matters, use check_rate_limit.
-- Parameters: p_user_id and p_route, what is counted, 1 to 1024 bytes each; p_limit and p_window_sec, 1 or more. The window's
--             length is part of the key; the limit is not.
-- Result:     whether it was counted.
-- Locks:      the key's row, until the transaction ends; none if refused.
-- Index:      door_fixed_pkey.
create or replace function check_and_consume_quota(p_user_id text, p_route text, p_limit integer, p_window_sec integer)
returns boolean
language plpgsql security definer set search_path from current as $$
declare
  v_window  bigint;
  v_counted bigint;
begin
  if (p_user_id <> '' and octet_length(p_user_id) <= 1024 and p_route <> '' and octet_length(p_route) <= 1024
      and p_limit > 0 and p_window_sec > 0) is not true then
    perform door_require_text('p_user_id', p_user_id);
    perform door_require_text('p_route', p_route);
    perform door_require_count('p_limit', p_limit);
    perform door_require_count('p_window_sec', p_window_sec);
  end if;

  for v_round in 1..10 loop
    v_window := door_now_us() / 1000000 / p_window_sec;
    -- An update whose condition fails locks nothing; one that waited looks at the row again.
    update door_fixed d
    set window_number = greatest(d.window_number, v_window),
      used = case when d.window_number < v_window then 1 else d.used + 1 end
    where d.user_id = p_user_id and d.route = p_route and d.window_seconds = p_window_sec
      and (d.used < p_limit or d.window_number < v_window)
    returning d.window_number into v_counted;
    if found then
      -- The time now that the lock is held. If the wait for it outlasted the window, this is the next one's first unit.
      v_window := door_now_us() / 1000000 / p_window_sec;
      if v_counted < v_window then
        update door_fixed d set window_number = v_window, used = 1
        where d.user_id = p_user_id and d.route = p_route and d.window_seconds = p_window_sec;
      end if;
      return true;
    end if;

    perform from door_fixed d where d.user_id = p_user_id and d.route = p_route and d.window_seconds = p_window_sec;
    if found then
      -- Full, unless the window ended while this waited.
      if v_window = door_now_us() / 1000000 / p_window_sec then
        return false;
      end if;
    else
      insert into door_fixed (user_id, route, window_seconds, window_number, used, sweep_s)
      select p_user_id, p_route, p_window_sec,
        coalesce((select f.floor_s from door_floor f where f.door = 'fixed' and f.window_seconds = p_window_sec), 0)
          / p_window_sec,
        0, door_now_us() / 1000000 + p_window_sec + 3600
      on conflict (user_id, route, window_seconds) do nothing;
    end if;
  end loop;
  raise exception using errcode = '40001', message = 'the row of p_user_id and p_route could not be locked', hint = 'Try again.';
end
$$;
revoke execute on function check_and_consume_quota(text, text, integer, integer) from public;

-- Purpose:    adds p_amount to a key's day if that leaves it at or below p_limit, else adds nothing.
-- Parameters: p_key, what is counted, 1 to 1024 bytes; p_day, the caller's day: when it begins and ends is the caller's to
--             say, so take the day and the time of its reset from one clock and one time zone; p_amount and p_limit, 1 or more.
-- Result:     one row. allowed; count, the day's count after the call. A refused count is the true one, also above a lowered
--             limit. An amount above the limit is refused always: waiting does not help.
-- Locks:      the key's row, until the transaction ends; none if refused.
-- Index:      door_daily_pkey.
create or replace function check_and_increment_usage(p_key text, p_day date, p_amount integer, p_limit integer)
returns table (allowed boolean, count integer)
language plpgsql security definer rows 1 set search_path from current as $$
begin
  if (p_key <> '' and octet_length(p_key) <= 1024 and isfinite(p_day) and p_amount > 0 and p_limit > 0) is not true then
    perform door_require_text('p_key', p_key);
    perform door_require_count('p_amount', p_amount);
    perform door_require_count('p_limit', p_limit);
    raise exception using errcode = '22023', message = format('p_day is %s', coalesce(p_day::text, 'null')),
      hint = 'Pass the day to count on, for example (now() at time zone ''Europe/Rome'')::date.';
  end if;

  -- p_limit - p_amount cannot overflow, and the sum it bounds cannot either. The condition is looked at again after a wait.
  update door_daily d set used = d.used + p_amount
  where d.day = p_day and d.key = p_key and d.used <= p_limit - p_amount
  returning d.used into count;
  allowed := found;
  if not allowed then
    -- A day's count only grows, so what is read here refuses, too.
    select d.used into count from door_daily d where d.day = p_day and d.key = p_key;
    if not found and p_amount <= p_limit then
      if (p_day + 1 - date '1970-01-01') * 86400::bigint
          <= (select f.floor_s from door_floor f where f.door = 'daily' and f.window_seconds = 86400) then
        raise exception using errcode = '22023', message = format('p_day is %s, and counts of that time are gone', p_day),
          hint = 'Cleanup keeps 35 days.';
      end if;
      insert into door_daily as d (day, key, used) values (p_day, p_key, p_amount)
      on conflict (day, key) do update set used = d.used + excluded.used where d.used <= p_limit - p_amount
      returning d.used into count;
      allowed := found;
      if not allowed then
        select d.used into count from door_daily d where d.day = p_day and d.key = p_key;
      end if;
    end if;
    count := coalesce(count, 0);
  end if;
  return next;
end
$$;
revoke execute on function check_and_increment_usage(text, date, integer, integer) from public;

-- Purpose:    removes what no longer matters, at most 1000 rows of each table per call, so that it is soon done. Call it now
--             and then, again at once while it returns more than 0, each call in a transaction of its own. Nothing
--             depends on it but space.
--               sliding, fixed: a key's row, an hour after all in it has left or its window has ended. The hour spares keys
--                 that come back; that no credit comes of a removal is door_floor's doing, whatever the clock does.
--               daily: days more than 35 behind the date in UTC: over in every time zone, kept for last month's report and
--                 for who counts a week or month under its first day. A day that was removed is not begun anew: it is an error.
-- Parameters: none.
-- Result:     how many rows went.
-- Locks:      the rows it removes or looks at, where nobody holds them (skip locked), then rows of door_floor. It waits for no
--             caller; a caller waits for it only if its key is among those, for as long as the call takes.
-- Index:      door_sliding_sweep_s, door_fixed_sweep_s, door_daily_pkey.
create or replace function cleanup_old_rate_limit_buckets() returns integer
language plpgsql security definer set search_path from current as $$
declare
  c_rows    constant integer := 1000;
  c_grace_s constant integer := 3600;
  v_now_s   bigint := door_now_us() / 1000000;
  v_today   date := date '1970-01-01' + (v_now_s / 86400)::integer;
  v_key     record;
  v_seen    integer;
  v_gone    integer;
  v_removed integer := 0;
begin
  -- Chunks before their row, so that none is left without one. A row stays until the last of its chunks has gone.
  for v_key in
    select d.key, d.window_seconds, d.latest_us / 1000000 + d.window_seconds + 1 + c_grace_s <= v_now_s as is_over,
      d.latest_us / 1000000 - d.window_seconds as live_from
    from door_sliding d
    where d.sweep_s <= v_now_s and d.spilled_second is not null
    order by d.sweep_s
    limit c_rows
    for update skip locked
  loop
    delete from door_sliding_chunk c
    where c.key = v_key.key and c.window_seconds = v_key.window_seconds and c.last_second in (
      select o.last_second from door_sliding_chunk o
      where o.key = v_key.key and o.window_seconds = v_key.window_seconds
        and (v_key.is_over or o.last_second < v_key.live_from)
      order by o.last_second
      limit c_rows - v_removed
    );
    get diagnostics v_gone = row_count;
    v_removed := v_removed + v_gone;
    exit when v_removed >= c_rows;
    if v_key.is_over then
      update door_sliding d set spilled_second = null
      where d.key = v_key.key and d.window_seconds = v_key.window_seconds;
    end if;
  end loop;

  -- sweep_s says when to look, not what will be found: a key in use is put off until it could be over. Should that be all
  -- there is in a batch, the next is looked at, so that 0 means there is nothing left to do.
  for v_round in 1..10 loop
    with due as materialized (
      select d.key, d.window_seconds, d.latest_us / 1000000 + d.window_seconds + 1 as ends_s
      from door_sliding d
      where d.sweep_s <= v_now_s
      order by d.sweep_s
      limit c_rows
      for update skip locked
    ), removed as (
      delete from door_sliding d using due
      where d.key = due.key and d.window_seconds = due.window_seconds
        and due.ends_s + c_grace_s <= v_now_s and d.spilled_second is null
      returning d.window_seconds, due.ends_s
    ), kept as (
      update door_sliding d set sweep_s = due.ends_s + c_grace_s from due
      where d.key = due.key and d.window_seconds = due.window_seconds and due.ends_s + c_grace_s > v_now_s
    ), floors as (
      insert into door_floor as f (door, window_seconds, floor_s)
      select 'sliding', removed.window_seconds, max(removed.ends_s) from removed group by 2 order by 2
      on conflict (door, window_seconds) do update set floor_s = greatest(f.floor_s, excluded.floor_s)
    )
    select (select count(*) from due), (select count(*) from removed) into v_seen, v_gone;
    v_removed := v_removed + v_gone;
    exit when v_seen < c_rows or v_gone > 0;
  end loop;

  for v_round in 1..10 loop
    with due as materialized (
      select d.user_id, d.route, d.window_seconds, (d.window_number + 1) * d.window_seconds as ends_s
      from door_fixed d
      where d.sweep_s <= v_now_s
      order by d.sweep_s
      limit c_rows
      for update skip locked
    ), removed as (
      delete from door_fixed d using due
      where d.user_id = due.user_id and d.route = due.route and d.window_seconds = due.window_seconds
        and due.ends_s + c_grace_s <= v_now_s
      returning d.window_seconds, due.ends_s
    ), kept as (
      update door_fixed d set sweep_s = due.ends_s + c_grace_s from due
      where d.user_id = due.user_id and d.route = due.route and d.window_seconds = due.window_seconds
        and due.ends_s + c_grace_s > v_now_s
    ), floors as (
      insert into door_floor as f (door, window_seconds, floor_s)
      select 'fixed', removed.window_seconds, max(removed.ends_s) from removed group by 2 order by 2
      on conflict (door, window_seconds) do update set floor_s = greatest(f.floor_s, excluded.floor_s)
    )
    select (select count(*) from due), (select count(*) from removed) into v_seen, v_gone;
    v_removed := v_removed + v_gone;
    exit when v_seen < c_rows or v_gone > 0;
  end loop;

  with due as materialized (
    select d.day, d.key from door_daily d
    where d.day < v_today - 35
    order by d.day, d.key
    limit c_rows
    for update skip locked
  ), removed as (
    delete from door_daily d using due where d.day = due.day and d.key = due.key returning d.day
  ), floors as (
    insert into door_floor as f (door, window_seconds, floor_s)
    select 'daily', 86400, (max(removed.day) + 1 - date '1970-01-01') * 86400::bigint from removed
    having count(*) > 0
    on conflict (door, window_seconds) do update set floor_s = greatest(f.floor_s, excluded.floor_s)
  )
  select count(*) from removed into v_gone;
  return v_removed + v_gone;
end
$$;
revoke execute on function cleanup_old_rate_limit_buckets() from public;
