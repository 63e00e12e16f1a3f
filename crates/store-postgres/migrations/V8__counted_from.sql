-- `counted_from`: the instant from which on the windows of a policy are counted. Slots before it
-- count in no window until somebody asks for a time so early.
-- `rebuilt`: the revision at which all windows were last made anew: whoever remembers older ones
-- reads them again.
alter table schedule add column counted_from bigint not null default -9223372036854775808;
alter table schedule add column rebuilt bigint not null default 0;
