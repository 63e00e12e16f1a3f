-- Comparator: windows handed out as in the scheduling seed (SEEDS.md 3), told in our words and in plpgsql.
--
-- What it gets wrong, on purpose: counters by time alone, windows provisioned in chunks, locked ones skipped (so events
-- scatter into later windows while earlier ones have room), full ones read again by every call, a search depth after
-- which it gives up, and jitter whose bound is a matter of chance. It stays fast enough to be compared with because one
-- call is one transaction in the database; the original makes several round trips.
create table if not exists usual_slot_window (
  window_start timestamptz primary key,
  slot_count   integer not null default 0
);
create index if not exists usual_slot_window_count on usual_slot_window (window_start, slot_count);
create table if not exists usual_slot (
  event_id     text primary key,
  requested_at timestamptz not null,
  window_start timestamptz not null,
  scheduled_at timestamptz not null
);
create table if not exists usual_slot_frontier (
  requested_at timestamptz not null,
  window_end   timestamptz not null,
  primary key (requested_at, window_end)
);

-- Makes a chunk of 100 windows, unless its last one is there.
create or replace function usual_slot_provision(p_from timestamptz, p_size interval) returns timestamptz
language plpgsql as $$
declare
  v_end timestamptz := p_from + p_size * 100;
begin
  if not exists (select from usual_slot_window where window_start = v_end - p_size) then
    insert into usual_slot_window (window_start)
    select p_from + p_size * n from generate_series(0, 99) n
    on conflict do nothing;
  end if;
  return v_end;
end
$$;

-- The earliest window of a range with room that nobody else holds; null if there is none.
create or replace function usual_slot_find(p_from timestamptz, p_to timestamptz, p_size interval, p_max integer)
returns timestamptz
language plpgsql as $$
declare
  v_from timestamptz := p_from;
  v_found timestamptz;
begin
  loop
    select w.window_start into v_found from usual_slot_window w
    where w.slot_count < p_max and w.window_start = (
      select c.window_start from usual_slot_window c
      where c.window_start >= v_from and c.window_start < p_to and c.slot_count < p_max
      order by c.window_start limit 1
    )
    for update skip locked;
    if found then return v_found; end if;
    -- Was there none, or was it held?
    select c.window_start into v_found from usual_slot_window c
    where c.window_start >= v_from and c.window_start < p_to and c.slot_count < p_max
    order by c.window_start limit 1;
    if not found then return null; end if;
    v_from := v_found + p_size;
  end loop;
end
$$;

create or replace function usual_slot_assign(p_event_id text, p_at timestamptz, p_max integer, p_size_seconds integer)
returns timestamptz
language plpgsql as $$
declare
  v_size interval := make_interval(secs => p_size_seconds);
  v_start timestamptz := to_timestamp(floor(extract(epoch from p_at) / p_size_seconds) * p_size_seconds);
  v_elapsed double precision := extract(epoch from p_at - v_start);
  v_first integer := floor(p_max * (p_size_seconds - v_elapsed) / p_size_seconds);
  v_window timestamptz;
  v_frontier timestamptz;
  v_scheduled timestamptz;
begin
  select s.scheduled_at into v_scheduled from usual_slot s where s.event_id = p_event_id;
  if found then return v_scheduled; end if;

  insert into usual_slot_window (window_start) values (v_start) on conflict do nothing;
  select w.window_start into v_window from usual_slot_window w
  where w.window_start = v_start and w.slot_count < v_first for update skip locked;
  if not found then
    v_elapsed := 0;
    select max(f.window_end) into v_frontier from usual_slot_frontier f where f.requested_at = v_start;
    if v_frontier is null then
      v_frontier := usual_slot_provision(v_start + v_size, v_size);
      insert into usual_slot_frontier values (v_start, v_frontier) on conflict do nothing;
    end if;
    v_window := usual_slot_find(v_start + v_size, v_frontier, v_size, p_max);
    for chunk in 1 .. 2 loop
      exit when v_window is not null;
      v_window := v_frontier;
      v_frontier := usual_slot_provision(v_window, v_size);
      insert into usual_slot_frontier values (v_start, v_frontier) on conflict do nothing;
      v_window := usual_slot_find(v_window, v_frontier, v_size, p_max);
    end loop;
    if v_window is null then raise exception 'no window within the search depth'; end if;
  end if;
  v_scheduled := v_window + make_interval(secs => v_elapsed + random() * (p_size_seconds - v_elapsed));
  insert into usual_slot values (p_event_id, p_at, v_window, v_scheduled);
  update usual_slot_window w set slot_count = w.slot_count + 1 where w.window_start = v_window;
  return v_scheduled;
end
$$;

-- What a bare durable insert costs.
create table if not exists bare_event (
  event_id     text primary key,
  requested_at timestamptz not null
);
