//! One batch in memory: which keys it needs, what was found under them, what is decided.
//!
//! No I/O here. [`Batch::of`] says what to lock, [`Batch::found`] takes what the database held,
//! [`Batch::settle`] answers every request in order of arrival, and what is left in the batch is
//! what to write.

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use tollgate_core::store::{
    Checked, Decided, Once, OnceKey, OwnedAsk, Receipt, Record, Refunded, SpendId, Spent,
    StoreError,
};
use tollgate_core::{
    INLINE_LIMITS, Instant, Intent, Reader, Refund, State, States, Writer, decide, refund,
};

use crate::error::{contended, corrupt};
use crate::job::{Answer, Back, Effect, Request, Work};
use crate::known::Known;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

pub(crate) struct Batch<'a> {
    requests: &'a [Request],
    /// By key, ascending.
    seats: Vec<Seat<'a>>,
    /// For each request, the seats of its keys.
    seat_numbers: Vec<SeatNumbers>,
    records: Map<&'a [u8], Record>,
    new_records: Vec<(&'a OnceKey, Vec<u8>)>,
    refunded: HashSet<SpendId, foldhash::fast::RandomState>,
    new_refunds: Vec<(SpendId, Instant)>,
}

type SeatNumbers = SmallVec<[usize; INLINE_LIMITS]>;

struct Seat<'a> {
    key: &'a [u8],
    locks: bool,
    found: Found,
    changed: bool,
}

enum Found {
    Nothing,
    State(State),
    /// Somebody else holds the key.
    Held,
    Corrupt,
}

/// What is read once all locks are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// What to decide by.
    pub(crate) now: Instant,
    /// What the clock showed: less than `now` while a sweep has been further.
    pub(crate) clock: Instant,
    pub(crate) epoch: u64,
}

impl<'a> Batch<'a> {
    pub(crate) fn of(requests: &'a [Request]) -> Self {
        let mut wanted: Vec<(&[u8], bool, usize, usize)> = Vec::with_capacity(requests.len());
        let mut seat_numbers: Vec<SeatNumbers> = Vec::with_capacity(requests.len());
        for (number, request) in requests.iter().enumerate() {
            let keys = request.keys();
            seat_numbers.push(SmallVec::from_elem(0, keys.len()));
            let locks = !request.only_reads();
            wanted.extend(
                keys.iter().enumerate().map(|(position, key)| (*key, locks, number, position)),
            );
        }
        wanted.sort_unstable_by_key(|(key, ..)| *key);
        let mut seats: Vec<Seat<'_>> = Vec::with_capacity(wanted.len());
        for (key, locks, number, position) in wanted {
            match seats.last_mut() {
                Some(last) if last.key == key => last.locks |= locks,
                _ => seats.push(Seat { key, locks, found: Found::Nothing, changed: false }),
            }
            seat_numbers[number][position] = seats.len() - 1;
        }
        Self {
            requests,
            seats,
            seat_numbers,
            records: Map::default(),
            new_records: Vec::new(),
            refunded: HashSet::default(),
            new_refunds: Vec::new(),
        }
    }

    /// Keys to lock, ascending.
    pub(crate) fn keys_to_lock(&self) -> Vec<&'a [u8]> {
        self.seats.iter().filter(|seat| seat.locks).map(|seat| seat.key).collect()
    }

    /// Keys only to look at, ascending.
    pub(crate) fn keys_to_read(&self) -> Vec<&'a [u8]> {
        self.seats.iter().filter(|seat| !seat.locks).map(|seat| seat.key).collect()
    }

    /// Idempotency keys, in the order their advisory locks are taken.
    pub(crate) fn once_ids(&self) -> Vec<(i64, &'a [u8])> {
        let mut ids: Vec<_> = self
            .requests
            .iter()
            .filter_map(|request| request.once.as_ref())
            .map(|once| (advisory(&once.id), &*once.id))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Receipts about to be given back.
    pub(crate) fn receipts(&self) -> Vec<SpendId> {
        let receipts = self.requests.iter().filter_map(|request| match &request.work {
            Work::Refund(receipt) => Some(receipt.id),
            Work::Check { .. } | Work::Find => None,
        });
        receipts.collect()
    }

    /// Takes what the database holds. Keys are ascending; an empty state is none yet.
    /// Whether every key to lock was there: if not, nothing may be decided, unless they are held
    /// by somebody else and `held_are_missing` says that this is why.
    pub(crate) fn found<'d>(
        &mut self,
        rows: impl IntoIterator<Item = (&'d [u8], &'d [u8])>,
        read: impl IntoIterator<Item = (&'d [u8], &'d [u8])>,
        held_are_missing: bool,
    ) -> bool {
        let mut rows = rows.into_iter().peekable();
        let mut complete = true;
        for seat in self.seats.iter_mut().filter(|seat| seat.locks) {
            if let Some((_, state)) = rows.next_if(|(key, _)| *key == seat.key) {
                seat.found = Found::decode(state);
            } else {
                seat.found = Found::Held;
                complete = held_are_missing;
            }
        }
        for (key, state) in read {
            if let Ok(seat_number) = self.seats.binary_search_by_key(&key, |seat| seat.key) {
                self.seats[seat_number].found = Found::decode(state);
            }
        }
        complete
    }

    /// Takes what is remembered instead. Whether the batch can be decided by it: only plain checks
    /// can, and only if every state is known.
    pub(crate) fn recalled(&mut self, known: &Known) -> bool {
        self.requests.iter().all(Request::is_plain)
            && self.seats.iter_mut().all(|seat| match known.get(seat.key) {
                Some(state) => {
                    seat.found = Found::decode(state);
                    true
                }
                None => false,
            })
    }

    pub(crate) fn found_record(&mut self, id: &[u8], record: Record) {
        let asked = self.requests.iter().filter_map(|request| request.once.as_ref());
        if let Some(once) = asked.into_iter().find(|once| once.id == id) {
            self.records.insert(&once.id, record);
        }
    }

    pub(crate) fn found_refund(&mut self, id: SpendId) {
        self.refunded.insert(id);
    }

    /// The keys that somebody else holds.
    pub(crate) fn held_keys(&self) -> impl Iterator<Item = &'a [u8]> {
        self.seats.iter().filter(|seat| matches!(seat.found, Found::Held)).map(|seat| seat.key)
    }

    /// Answers every request, in order of arrival.
    pub(crate) fn settle(
        &mut self,
        backs: &mut [Back],
        reading: Reading,
        mut next_id: impl FnMut() -> SpendId,
    ) -> Vec<Result<Answer, StoreError>> {
        let requests = self.requests;
        let answer = |(number, (request, back)): (usize, (&'a Request, &mut Back))| {
            if let Some(once) = &request.once
                && let Some(record) = self.records.get(&*once.id)
            {
                return Ok(replay(&request.work, record.clone()));
            }
            let seat_numbers = self.seat_numbers[number].clone();
            for seat_number in &seat_numbers {
                match self.seats[*seat_number].found {
                    Found::Held => return Err(contended()),
                    Found::Corrupt => return Err(corrupt("a stored count cannot be read")),
                    Found::Nothing | Found::State(_) => {}
                }
            }
            let mut record = |effect: Effect<'_>| {
                if let (Some(once), Some(render)) = (&request.once, back.render.take()) {
                    let body = render(effect);
                    let fingerprint = once.fingerprint.clone();
                    self.records.insert(&once.id, Record { fingerprint, body: body.clone() });
                    self.new_records.push((once, body));
                }
            };
            Ok(match &request.work {
                Work::Find => Answer::Found(None),
                Work::Check { ask: OwnedAsk { epoch: Some(asked_by), .. }, .. }
                    if *asked_by != reading.epoch =>
                {
                    Answer::Checked(Checked::Stale(*asked_by))
                }
                Work::Check { ask, intent } => {
                    let mut lent = Lent { seats: &mut self.seats, seat_numbers: &seat_numbers };
                    let decided = check(ask, *intent, &mut lent, reading.now, &mut next_id);
                    if decided.decision.allowed() {
                        record(Effect::Decided(&decided));
                    }
                    Answer::Checked(Checked::Decided(Once::Fresh(decided)))
                }
                Work::Refund(receipt) => {
                    let done = give_back(
                        receipt,
                        &mut Lent { seats: &mut self.seats, seat_numbers: &seat_numbers },
                        self.refunded.contains(&receipt.id),
                        reading.now,
                    );
                    if done == Refunded::Done {
                        self.refunded.insert(receipt.id);
                        self.new_refunds.push((receipt.id, receipt.expires_at()));
                        record(Effect::Refunded(done));
                    }
                    Answer::Refunded(Once::Fresh(done))
                }
            })
        };
        requests.iter().zip(backs).enumerate().map(answer).collect()
    }

    /// The keys of a request, with what is counted under them now.
    pub(crate) fn states_of(
        &self,
        request: usize,
    ) -> impl Iterator<Item = (&'a [u8], Option<&State>)> {
        self.seat_numbers[request].iter().map(|seat_number| {
            let seat = &self.seats[*seat_number];
            let state = match &seat.found {
                Found::State(state) => Some(state),
                _ => None,
            };
            (seat.key, state)
        })
    }

    pub(crate) fn changed_keys(&self) -> impl Iterator<Item = &'a [u8]> {
        self.seats.iter().filter(|seat| seat.changed).map(|seat| seat.key)
    }

    /// The locked keys with the bytes of their states, as the batch leaves them; `None` where that
    /// is not known.
    pub(crate) fn left_behind(&self) -> impl Iterator<Item = (&'a [u8], Option<Vec<u8>>)> {
        self.seats.iter().filter(|seat| seat.locks).map(|seat| {
            let state = match &seat.found {
                Found::Nothing => Some(Vec::new()),
                Found::State(state) => Some(encode(state)),
                Found::Held | Found::Corrupt => None,
            };
            (seat.key, state)
        })
    }

    /// What the batch changed.
    pub(crate) fn changes(&self) -> Changes<'_> {
        let mut changes = Changes {
            keys: Vec::new(),
            states: Vec::new(),
            expiries: Vec::new(),
            records: &self.new_records,
            refunds: &self.new_refunds,
        };
        for seat in self.seats.iter().filter(|seat| seat.changed) {
            if let Found::State(state) = &seat.found {
                changes.keys.push(seat.key);
                changes.states.push(encode(state));
                changes.expiries.push(state.expires_at().as_micros());
            }
        }
        changes
    }
}

/// What one batch writes, ready for the database.
pub(crate) struct Changes<'b> {
    pub(crate) keys: Vec<&'b [u8]>,
    pub(crate) states: Vec<Vec<u8>>,
    pub(crate) expiries: Vec<i64>,
    pub(crate) records: &'b [(&'b OnceKey, Vec<u8>)],
    pub(crate) refunds: &'b [(SpendId, Instant)],
}

impl Changes<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.records.is_empty() && self.refunds.is_empty()
    }
}

fn encode(state: &State) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24);
    Writer(&mut bytes).state(state);
    bytes
}

impl Found {
    fn decode(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::Nothing;
        }
        let mut reader = Reader(bytes);
        match reader.state().and_then(|state| reader.end().map(|()| state)) {
            Ok(state) => Self::State(state),
            Err(_) => Self::Corrupt,
        }
    }
}

/// The states of one request, out of the batch's.
struct Lent<'s, 'a> {
    seats: &'s mut [Seat<'a>],
    seat_numbers: &'s [usize],
}

impl States for Lent<'_, '_> {
    fn get(&self, position: usize) -> Option<&State> {
        match &self.seats[self.seat_numbers[position]].found {
            Found::State(state) => Some(state),
            _ => None,
        }
    }

    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        let seat = &mut self.seats[self.seat_numbers[position]];
        debug_assert!(seat.locks, "only what is locked is changed");
        seat.changed = true;
        if !matches!(seat.found, Found::State(_)) {
            seat.found = Found::State(fresh());
        }
        match &mut seat.found {
            Found::State(state) => state,
            _ => unreachable!("it was just made"),
        }
    }
}

fn check(
    ask: &OwnedAsk,
    intent: Intent,
    states: &mut Lent<'_, '_>,
    now: Instant,
    next_id: impl FnOnce() -> SpendId,
) -> Decided {
    let claims = ask.claims();
    let decision = decide(&claims, states, intent, ask.cost, now);
    let spent = (decision.allowed() && intent == Intent::Spend).then(|| Spent {
        id: next_id(),
        spends: claims
            .iter()
            .enumerate()
            .map(|(position, keyed)| {
                let state = states.get(position).expect("an allowed check leaves a state behind");
                state.latest_spend(keyed.claim.quota, ask.cost)
            })
            .collect(),
    });
    Decided { decision, spent }
}

fn give_back(
    receipt: &Receipt,
    states: &mut Lent<'_, '_>,
    is_refunded: bool,
    now: Instant,
) -> Refunded {
    if now >= receipt.expires_at() {
        return Refunded::Expired;
    }
    if is_refunded {
        return Refunded::Already;
    }
    let mut given = false;
    for (position, (_, spend)) in receipt.spends.iter().enumerate() {
        let seat = &mut states.seats[states.seat_numbers[position]];
        if let Found::State(state) = &mut seat.found
            && refund(state, spend, receipt.cost, now) == Refund::Done
        {
            seat.changed = true;
            given = true;
        }
    }
    if given { Refunded::Done } else { Refunded::Expired }
}

fn replay(work: &Work, record: Record) -> Answer {
    match work {
        Work::Check { .. } => Answer::Checked(Checked::Decided(Once::Replay(record))),
        Work::Refund(_) => Answer::Refunded(Once::Replay(record)),
        Work::Find => Answer::Found(Some(record)),
    }
}

/// Ids are hashes, so their first bytes are as good as any.
fn advisory(id: &[u8]) -> i64 {
    let mut first = [0; 8];
    for (to, from) in first.iter_mut().zip(id) {
        *to = *from;
    }
    i64::from_be_bytes(first)
}
