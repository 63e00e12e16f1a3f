-- The instant from which on the windows of a policy are counted. Slots before it count in no window
-- until somebody asks for a time so early.
alter table schedule add column counted_from integer not null default -9223372036854775808;
