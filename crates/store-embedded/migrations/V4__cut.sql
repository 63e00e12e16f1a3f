-- What was decided and is not in counter yet, oldest first: each row is all that one commit wrote of counts.
create table cut (
    id      integer primary key,
    changes blob not null
);
