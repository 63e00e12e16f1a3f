-- Comparator: the usual daily counter, one conditional upsert (SEEDS.md 0), told in our words: its table.
-- The statement itself stands in usual_upsert_statement.sql, because people prepare it as it is, without a function.
--
-- What it gets wrong, on purpose: the insert arm does not look at the limit, and a refusal returns no row, so no count.
-- As costly as the original: a serial id, two timestamps, one more index for the unique pair. Its foreign key is left out,
-- which spares it a look-up per new key; keys are text where it has uuid, so that both sides get the same ones.
create table if not exists usual_daily_usage (
  id         bigserial primary key,
  key        text not null,
  day        date not null,
  used       integer not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (key, day)
);
