-- Comparator: adds $3 to the count of key $1 on day $2 under limit $4. See usual_upsert.sql.
-- Returns: the new count, or no row if refused. Locks: the row, also when it refuses. Index: unique (key, day).
insert into usual_daily_usage as u (key, day, used)
values ($1, $2, $3)
on conflict (key, day) do update set used = u.used + $3 where u.used + $3 <= $4
returning used
