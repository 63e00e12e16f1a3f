//! Cuts on their way into the table of counts.
//!
//! A commit writes what was decided as one row, whatever keys it is about; once a second the last change of each key goes
//! to the table of counts, a part with every commit. So a key that is checked often is written there once, and a commit
//! touches few pages however many keys there are. Whoever opens the file reads the counts, and over them the cuts.

use std::time::{Duration, Instant as Moment};

use hashbrown::HashMap;
use rusqlite::{Connection, params};

use crate::journal::changes;

/// How long cuts are gathered before they are folded.
const GATHER: Duration = Duration::from_secs(1);
/// A fold is done with so many commits: as long as it takes to gather the next, under load.
const PARTS: usize = 20;
/// Tests have few keys, and parts all the same.
const ROWS_PER_PART: usize = if cfg!(test) { 2 } else { 500 };

/// The cuts in the file.
pub(crate) struct Unfolded {
    /// Of the newest one ever written.
    last_id: i64,
    /// Those that no fold holds yet, oldest first.
    gathered: Vec<Vec<u8>>,
    gathering_since: Moment,
    fold: Option<Fold>,
}

impl Unfolded {
    /// As they were found in the file.
    pub(crate) fn of(gathered: Vec<Vec<u8>>, last_id: i64) -> Self {
        Self { last_id, gathered, gathering_since: Moment::now(), fold: None }
    }

    /// Writes cuts behind those in the file. Nothing is noted: the transaction may fail.
    pub(crate) fn write(
        &self,
        connection: &Connection,
        cuts: &[Vec<u8>],
    ) -> Result<(), rusqlite::Error> {
        let mut put = connection.prepare_cached("insert into cut (id, changes) values (?1, ?2)")?;
        for (id, cut) in (self.last_id + 1..).zip(cuts) {
            put.execute(params![id, cut])?;
        }
        Ok(())
    }

    /// Folds the next part in the transaction that is open. Nothing is noted here either.
    pub(crate) fn write_part(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        self.fold.as_ref().map_or(Ok(()), |fold| fold.write(connection, fold.next_part()))
    }

    /// The transaction with these cuts and the next part of the fold is committed.
    pub(crate) fn committed(&mut self, cuts: Vec<Vec<u8>>) {
        self.last_id += cuts.len() as i64;
        self.gathered.extend(cuts);
        if let Some(fold) = &self.fold {
            self.folded(fold.next_part().end);
        }
        if self.fold.is_none() && self.gathering_since.elapsed() >= GATHER {
            self.begin_fold();
        }
    }

    /// Folds all there is, in transactions of its own.
    pub(crate) fn fold_all(&mut self, connection: &Connection) -> Result<(), rusqlite::Error> {
        while self.fold_rows(connection, usize::MAX)? {}
        Ok(())
    }

    /// Folds a few rows in a transaction of its own; whether there are more.
    pub(crate) fn fold_part(&mut self, connection: &Connection) -> Result<bool, rusqlite::Error> {
        self.fold_rows(connection, ROWS_PER_PART)
    }

    fn fold_rows(&mut self, connection: &Connection, rows: usize) -> Result<bool, rusqlite::Error> {
        if self.fold.is_none() {
            self.begin_fold();
        }
        let Some(fold) = &self.fold else { return Ok(false) };
        let part = fold.part_of(rows);
        connection.execute_batch("begin immediate")?;
        fold.write(connection, part.clone())?;
        connection.execute_batch("commit")?;
        self.folded(part.end);
        Ok(self.fold.is_some() || !self.gathered.is_empty())
    }

    /// The fold is committed as far as this.
    fn folded(&mut self, done: usize) {
        self.fold.take_if(|fold| {
            fold.done = done;
            done == fold.changes.len()
        });
    }

    fn begin_fold(&mut self) {
        self.gathering_since = Moment::now();
        let gathered = std::mem::take(&mut self.gathered);
        if !gathered.is_empty() {
            self.fold = Some(Fold::of(&gathered, self.last_id));
        }
    }
}

/// A key and its state; without one it is removed.
type Row = (Box<[u8]>, Option<Box<[u8]>>);

/// The last change of each key, in key order, and how far they are written.
struct Fold {
    changes: Vec<Row>,
    done: usize,
    /// Of the newest cut that is part of it.
    last_id: i64,
}

impl Fold {
    fn of(cuts: &[Vec<u8>], last_id: i64) -> Self {
        let last = last_changes(cuts);
        let mut changes: Vec<_> =
            last.into_iter().map(|(key, state)| (key.into(), state.map(Box::from))).collect();
        changes.sort_unstable_by(|one: &Row, other| one.0.cmp(&other.0));
        Self { changes, done: 0, last_id }
    }

    /// What goes with the next commit.
    fn next_part(&self) -> std::ops::Range<usize> {
        self.part_of(self.changes.len().div_ceil(PARTS).max(ROWS_PER_PART))
    }

    fn part_of(&self, rows: usize) -> std::ops::Range<usize> {
        self.done..self.changes.len().min(self.done.saturating_add(rows))
    }

    /// With the last part the cuts go: until then they make good what is not folded yet.
    fn write(
        &self,
        connection: &Connection,
        part: std::ops::Range<usize>,
    ) -> Result<(), rusqlite::Error> {
        let is_last = part.end == self.changes.len();
        let put = "insert or replace into counter (key, state) values (?1, ?2)";
        let mut put = connection.prepare_cached(put)?;
        let mut remove = connection.prepare_cached("delete from counter where key = ?1")?;
        for (key, state) in &self.changes[part] {
            match state {
                Some(state) => put.execute(params![key, state])?,
                None => remove.execute(params![key])?,
            };
        }
        if is_last {
            let mut forget = connection.prepare_cached("delete from cut where id <= ?1")?;
            forget.execute(params![self.last_id])?;
        }
        Ok(())
    }
}

/// What cuts leave of each key they are about.
pub(crate) fn last_changes(cuts: &[Vec<u8>]) -> HashMap<&[u8], Option<&[u8]>> {
    cuts.iter().flat_map(|cut| changes(cut)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Counts = BTreeMap<Vec<u8>, Vec<u8>>;

    fn change(key: u8, state: Option<u8>) -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 0, key, u8::from(state.is_some())];
        if let Some(state) = state {
            bytes.extend([1, 0, 0, 0, state]);
        }
        bytes
    }

    fn empty() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let tables =
            "create table counter (key blob primary key, state blob not null) without rowid;
             create table cut (id integer primary key, changes blob not null);";
        connection.execute_batch(tables).unwrap();
        connection
    }

    /// As whoever opens the file reads it.
    fn counts_in(connection: &Connection) -> Counts {
        let rows = |sql: &str| -> Vec<(Vec<u8>, Vec<u8>)> {
            let mut statement = connection.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let mut counts: Counts = rows("select key, state from counter").into_iter().collect();
        let cuts = rows("select x'', changes from cut order by id").into_iter().map(|row| row.1);
        for (key, state) in last_changes(&cuts.collect::<Vec<_>>()) {
            match state {
                Some(state) => drop(counts.insert(key.to_vec(), state.to_vec())),
                None => drop(counts.remove(key)),
            }
        }
        counts
    }

    fn rows_of(connection: &Connection, table: &str) -> i64 {
        let sql = format!("select count(*) from {table}");
        connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn at_every_moment_the_file_holds_what_was_committed() {
        let connection = empty();
        let mut unfolded = Unfolded::of(Vec::new(), 0);
        let (mut expected, mut random) = (Counts::new(), 7_u32);
        let mut below = |limit: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % limit
        };
        for _ in 0..2_000 {
            let mut after = expected.clone();
            let cuts: Vec<Vec<u8>> = (0..below(3))
                .map(|_| {
                    let (key, state) = (below(12) as u8, below(200) as u8);
                    let state = Some(state).filter(|state| *state < 160);
                    match state {
                        Some(state) => drop(after.insert(vec![key], vec![state])),
                        None => drop(after.remove(&[key][..])),
                    }
                    change(key, state)
                })
                .collect();
            connection.execute_batch("begin").unwrap();
            unfolded.write(&connection, &cuts).unwrap();
            unfolded.write_part(&connection).unwrap();
            if below(4) == 0 {
                connection.execute_batch("rollback").unwrap();
            } else {
                connection.execute_batch("commit").unwrap();
                // Sometimes it is time for a fold.
                if below(3) == 0 {
                    unfolded.gathering_since -= GATHER;
                }
                unfolded.committed(cuts);
                expected = after;
            }
            if below(10) == 0 {
                unfolded.fold_part(&connection).unwrap();
            }
            if below(20) == 0 {
                unfolded.fold_all(&connection).unwrap();
                assert_eq!(rows_of(&connection, "cut"), 0);
                assert_eq!(rows_of(&connection, "counter"), expected.len() as i64);
            }
            assert_eq!(counts_in(&connection), expected);
        }
    }

    #[test]
    fn a_fold_goes_in_parts_and_the_cuts_with_the_last() {
        let connection = empty();
        let keys = 3 * ROWS_PER_PART;
        let cut: Vec<u8> = (0..keys)
            .flat_map(|key| {
                let key = (key as u32).to_be_bytes();
                [&[4, 0, 0, 0][..], &key, &[1, 1, 0, 0, 0, 9]].concat()
            })
            .collect();
        let mut unfolded = Unfolded::of(Vec::new(), 0);
        unfolded.write(&connection, std::slice::from_ref(&cut)).unwrap();
        unfolded.gathering_since -= GATHER;
        unfolded.committed(vec![cut]);
        for part in 1..=3 {
            assert_eq!(rows_of(&connection, "cut"), 1);
            // With a commit, or when there is nothing else to do.
            if part == 2 {
                assert!(unfolded.fold_part(&connection).unwrap(), "there is a third");
            } else {
                unfolded.write_part(&connection).unwrap();
                unfolded.committed(Vec::new());
            }
            assert_eq!(rows_of(&connection, "counter") as usize, part * ROWS_PER_PART);
        }
        assert_eq!(rows_of(&connection, "cut"), 0);
        assert!(!unfolded.fold_part(&connection).unwrap());
    }
}
