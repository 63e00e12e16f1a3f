-- Comparator: the usual bucketed sliding window (SEEDS.md 4), told in our words: sum, clean up, compare, upsert.
--
-- What it gets wrong, on purpose: it reads without a lock and then writes, so racing calls all pass; cleaning up names no
-- key, so a short window's check erases a long one's buckets; a bucket leaves when its start does; the wait is the oldest
-- bucket's, rounded to nearest, so it can be 0 and can be too short; the window's length is no part of the key.
-- As costly as the original: the same three statements on the hot path, and the same two indexes.
create table if not exists usual_sliding_bucket (
  key          text not null,
  bucket_start timestamptz not null,
  used         integer not null default 1,
  primary key (key, bucket_start)
);
create index if not exists usual_sliding_bucket_start on usual_sliding_bucket (bucket_start);

create or replace function usual_sliding(p_key text, p_limit integer, p_window_seconds integer)
returns table (allowed boolean, current_count integer, retry_after integer)
language plpgsql as $$
declare
  v_window_start timestamptz;
  v_bucket       timestamptz;
  v_used         integer;
  v_oldest       timestamptz;
  v_wait         integer;
begin
  v_window_start := now() - (p_window_seconds || ' seconds')::interval;
  v_bucket := date_trunc('second', now());

  select coalesce(sum(b.used), 0) into v_used
  from usual_sliding_bucket b where b.key = p_key and b.bucket_start > v_window_start;

  delete from usual_sliding_bucket b
  where b.bucket_start <= v_window_start - (p_window_seconds || ' seconds')::interval;

  if v_used >= p_limit then
    select min(b.bucket_start) into v_oldest
    from usual_sliding_bucket b where b.key = p_key and b.bucket_start > v_window_start;
    v_wait := extract(epoch from (v_oldest + (p_window_seconds || ' seconds')::interval - now()))::integer;
    return query select false, v_used, v_wait;
  else
    insert into usual_sliding_bucket as b (key, bucket_start, used) values (p_key, v_bucket, 1)
    on conflict (key, bucket_start) do update set used = b.used + 1;
    return query select true, v_used + 1, 0;
  end if;
end
$$;
