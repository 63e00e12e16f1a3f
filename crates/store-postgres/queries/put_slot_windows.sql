-- Keeps the windows a group changed. $1 policy, whose lock is held; $2 numbers; $3 states; $4 revision
insert into tollgate.slot_window (policy, number, state, revision)
select $1, number, state, $4 from unnest($2, $3) changed (number, state)
on conflict (policy, number) do update set state = excluded.state, revision = excluded.revision
