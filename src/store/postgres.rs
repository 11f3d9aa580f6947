//! The store in PostgreSQL (13 or newer, behind PgBouncer in transaction mode too): any number of proxies share it.
//!
//! Every method is single statements in READ COMMITTED, each committed by itself and sent without a name, so that no
//! session has to remember anything of us. Four of them are batched, see `lanes`: a request puts its question into a
//! queue and a free connection takes whatever waits there. What one request goes through, insert, lose, look, is
//! written here as it happens to that one request.
//!
//! There is no `statement_timeout`: PgBouncer refuses it at connecting, and setting it later is session state. Our own
//! clock ends a call, and what becomes of its statement is told at `connect::Held`. Operators can give the role one
//! (`alter role … set statement_timeout`), above the store's `timeout`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::row::{Found, millis, state_of};
use super::{
    Ask, Books, OpenError, Pending, Record, RecordId, Renewal, Renewed, Reservation, Rule, Seen, Settings, Settled,
    Store, StoreError, Swept, Testimony,
};
use crate::domain::attempt::{Ending, InstanceId, Lease, Settlement, Token};
use crate::domain::job::{Enqueued, Order, PickUp, PickedUp};
use crate::domain::probe::{Finding, Page, Probe, Schedule};
use crate::domain::record::State;
use crate::domain::recovery::RecoveryPoint;
use crate::domain::scope::Salt;
use connect::Pool;
use deliveries::Enqueue;
use failure::Failure;
use lanes::Desk;
use statements::{Find, Reserve, Restore, Settle, TakeOver};

pub(super) use schema::{migrate, newest_step, pending};

mod books;
mod connect;
mod deliveries;
mod failure;
mod indexes;
mod lanes;
mod probes;
mod schema;
mod statements;
mod testimony;
mod tls;
mod upkeep;

/// How many statements of one kind are under way at once. Two keep a server busy and let a request that comes alone
/// find one free; more would make each batch, and with it the gain, smaller.
const LANES: usize = 2;

/// How often a key may vanish between being lost and being looked at. A reaper would have to hit it each time.
const ROUNDS_MAX: usize = 3;

/// Over how many connections a call is tried of which nothing was sent. Where there is no server, that takes no time.
const CONNECTIONS_MAX: usize = 3;

/// The store in PostgreSQL.
pub(super) struct Postgres {
    salt: Salt,
    timeout: Duration,
    reserve: Desk<Reserve>,
    take_over: Desk<TakeOver>,
    find: Desk<Find>,
    enqueue: Desk<Enqueue>,
    /// What is begun and not batched.
    begin: Pool,
    /// Ending attempts goes over connections of its own, which no flood of reservations can take.
    settle: Desk<Settle>,
    /// What a settlement reads back goes the same way.
    find_settled: Desk<Find>,
    /// And what has to be written anew.
    restore: Desk<Restore>,
    /// A lease that is renewed late loses attempts, so nothing else waits here.
    lease: Pool,
    upkeep: Pool,
}

/// Opens the store.
pub(super) async fn open(url: &str, settings: &Settings) -> Result<Postgres, OpenError> {
    let server = connect::config(url, settings.timeout)?;
    let salt = schema::prepare(&server, settings).await?;
    let pools = connect::pools(&server, settings.max_connections, settings.timeout)?;
    Ok(Postgres {
        salt,
        timeout: settings.timeout,
        reserve: Desk::open(&pools.begin, LANES),
        take_over: Desk::open(&pools.begin, LANES),
        find: Desk::open(&pools.begin, LANES),
        enqueue: Desk::open(&pools.begin, LANES),
        begin: pools.begin,
        settle: Desk::open(&pools.settle, LANES),
        find_settled: Desk::open(&pools.settle, 1),
        restore: Desk::open(&pools.settle, 1),
        lease: pools.lease,
        upkeep: pools.upkeep,
    })
}

impl Store for Postgres {
    fn reserve(&self, ask: Ask) -> Pending<'_, Reservation> {
        let ask = Arc::new(ask);
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |doubt| self.reserve_once(ask.clone(), doubt, deadline)))
    }

    fn take_over(&self, ask: Ask, from: Seen) -> Pending<'_, Reservation> {
        let ask = Arc::new(ask);
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |doubt| {
            self.take_over_once(ask.clone(), from, doubt, deadline)
        }))
    }

    fn settle(&self, settlement: Settlement) -> Pending<'_, Settled> {
        let settlement = Arc::new(settlement);
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::Always, move |doubt| {
            self.settle_once(settlement.clone(), doubt, deadline)
        }))
    }

    fn find(&self, id: RecordId) -> Pending<'_, Option<Record>> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| async move {
            Ok(self.find.ask(Find { id, doubt: false }, deadline).await??.map(|found| found.record))
        }))
    }

    fn salt(&self) -> Salt {
        self.salt.clone()
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Renewed> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::Always, move |_| upkeep::renew(&self.lease, renewal.clone(), deadline)))
    }

    fn retire(&self, instance: InstanceId) -> Pending<'_, ()> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::Always, move |_| upkeep::retire(&self.lease, instance, deadline)))
    }

    fn sweep(&self, expiry: Duration, limit: u32) -> Pending<'_, Vec<Swept>> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            upkeep::sweep(&self.upkeep, millis(expiry), limit, deadline)
        }))
    }

    fn standing(&self, instance: InstanceId, older_than: Duration) -> Pending<'_, Vec<(RecordId, Token)>> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            upkeep::standing(&self.upkeep, instance, millis(older_than), deadline)
        }))
    }

    fn reap(&self, limit: u32) -> Pending<'_, u64> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| upkeep::reap(&self.upkeep, limit, deadline)))
    }

    // Not tried again: a question too many is nothing beside one that nobody knows of.
    fn claim(&self, service: &Arc<str>, schedules: Vec<Schedule>, limit: u32) -> Pending<'_, Vec<Probe>> {
        let (service, deadline) = (Arc::clone(service), self.deadline());
        Box::pin(async move { Ok(probes::claim(&self.upkeep, &service, &schedules, limit, deadline).await?) })
    }

    fn resolve(&self, finding: Finding) -> Pending<'_, bool> {
        let (finding, deadline) = (Arc::new(finding), self.deadline());
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            probes::resolve(&self.upkeep, Arc::clone(&finding), deadline)
        }))
    }

    fn page(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> Pending<'_, Page> {
        let (wanted, deadline) = (Arc::new((Arc::clone(service), routes)), self.deadline());
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            probes::page(&self.upkeep, Arc::clone(&wanted), millis(since), after, limit, deadline)
        }))
    }

    fn enqueue(&self, order: Order, from: Option<Seen>) -> Pending<'_, Enqueued> {
        let order = Arc::new(order);
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |doubt| {
            self.enqueue_once(order.clone(), from, doubt, deadline)
        }))
    }

    // Not tried again: what it has reserved without our hearing of it is released as a stray, and due again.
    fn pick_up(&self, order: PickUp) -> Pending<'_, PickedUp> {
        let deadline = self.deadline();
        Box::pin(async move { Ok(deliveries::pick_up(&self.begin, &order, deadline).await?) })
    }

    fn bury(&self, id: RecordId, token: Token, states: &'static [&'static str], note: String) -> Pending<'_, bool> {
        let (note, deadline) = (Arc::<str>::from(note), self.deadline());
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            let note = Arc::clone(&note);
            async move { deliveries::bury(&self.upkeep, id, token, states, &note, deadline).await }
        }))
    }

    fn ping(&self) -> Pending<'_, ()> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| upkeep::ping(&self.upkeep, deadline)))
    }

    fn rules(&self, service: Arc<str>, rules: Vec<Rule>) -> Pending<'_, Vec<Rule>> {
        let deadline = self.deadline();
        let asked = Arc::new((service, rules));
        Box::pin(persist(deadline, Patience::Always, move |_| {
            let asked = asked.clone();
            async move { upkeep::rules(&self.upkeep, &asked.0, &asked.1, deadline).await }
        }))
    }

    fn testimony(&self) -> &dyn Testimony {
        self
    }

    fn books(&self) -> &dyn Books {
        self
    }
}

impl Postgres {
    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// `doubt`: an earlier try of this very call may have written the row.
    async fn reserve_once(&self, ask: Arc<Ask>, doubt: bool, deadline: Instant) -> Result<Reservation, Failure> {
        for _ in 0..ROUNDS_MAX {
            if self.reserve.ask(Reserve(ask.clone()), deadline).await? {
                return Ok(fresh(&ask, 1, None));
            }
            let look = self.find.ask(Find { id: ask.id, doubt }, deadline).await;
            if let Some(found) = look.map_err(Failure::of_taken)?? {
                return Ok(taken(&ask, found.record, doubt));
            }
        }
        let cause = "the key's record came and went while it was being reserved";
        Err(Failure::Refused(Arc::from(Box::from(cause))).of_taken())
    }

    async fn take_over_once(
        &self,
        ask: Arc<Ask>,
        from: Seen,
        doubt: bool,
        deadline: Instant,
    ) -> Result<Reservation, Failure> {
        let mut pauses = Pauses::new();
        loop {
            if let Some((attempt, reached)) = self.take_over.ask(TakeOver(ask.clone(), from), deadline).await?? {
                return Ok(fresh(&ask, attempt, reached));
            }
            match self.find.ask(Find { id: ask.id, doubt }, deadline).await?? {
                // Nothing stands against it but somebody's open transaction.
                Some(found) if may_be_taken(&found.record, from) => pauses.next().await,
                Some(found) => return Ok(taken(&ask, found.record, doubt)),
                None => return self.reserve_once(ask, doubt, deadline).await,
            }
        }
    }

    async fn enqueue_once(
        &self,
        order: Arc<Order>,
        from: Option<Seen>,
        doubt: bool,
        deadline: Instant,
    ) -> Result<Enqueued, Failure> {
        let mut pauses = Pauses::new();
        for _ in 0..ROUNDS_MAX {
            let accepted = match from {
                Some(from) => deliveries::enqueue_over(&self.begin, &order, from, deadline).await?,
                None => self.enqueue.ask(Enqueue(order.clone()), deadline).await?,
            };
            if accepted {
                return Ok(Enqueued::Accepted);
            }
            let look = self.find.ask(Find { id: order.ask.id, doubt }, deadline).await;
            match (look.map_err(Failure::of_taken)??, from) {
                // Our own, in a try whose answer got lost.
                (Some(found), _) if doubt && found.record.token == order.ask.token => return Ok(Enqueued::Accepted),
                // Nothing stands against it but somebody's open transaction.
                (Some(found), Some(from)) if may_be_taken(&found.record, from) => pauses.next().await,
                (Some(found), _) => return Ok(Enqueued::Taken(found.record)),
                (None, Some(_)) => return Box::pin(self.enqueue_once(order, None, doubt, deadline)).await,
                (None, None) => {}
            }
        }
        let cause = "the key's record came and went while it was being accepted";
        Err(Failure::Refused(Arc::from(Box::from(cause))).of_taken())
    }

    async fn settle_once(
        &self,
        settlement: Arc<Settlement>,
        doubt: bool,
        deadline: Instant,
    ) -> Result<Settled, Failure> {
        let mut pauses = Pauses::new();
        let mut held = false;
        loop {
            let question = Settle { settlement: settlement.clone(), held };
            if let Some(expires_at) = self.settle.ask(question, deadline).await?? {
                return Ok(Settled::Done { expires_at });
            }
            let found = self.find_settled.ask(Find { id: settlement.id, doubt }, deadline).await??;
            let Some(Found { record, expires_at }) = found else {
                if settlement.to_restore().is_none() {
                    return Ok(Settled::Fenced(None));
                }
                if let Some(expires_at) = self.restore.ask(Restore(settlement.clone()), deadline).await?? {
                    tracing::warn!(record = %settlement.id, "the store has no record of this key; its attempt's end is stored anew");
                    return Ok(Settled::Done { expires_at });
                }
                // Somebody was faster: who?
                continue;
            };
            let ours = record.token == settlement.token;
            let wanted = state_of(&record, &settlement.ending);
            match record.state.name() {
                state if ours && doubt && state == wanted && is_settled_so(&record, &settlement) => {
                    return Ok(Settled::Done { expires_at });
                }
                // Nothing stands against it but somebody's open transaction.
                _ if ours && may_end_so(&record, &settlement.ending) => {
                    held = true;
                    pauses.next().await;
                }
                _ => return Ok(Settled::Fenced(Some(record))),
            }
        }
    }
}

fn fresh(ask: &Arc<Ask>, attempt: u32, recovery_point: Option<RecoveryPoint>) -> Reservation {
    Reservation::Fresh(Lease { ask: ask.clone(), attempt, recovery_point, delivery: None })
}

/// Somebody was here before; or we were, in a try whose answer got lost.
fn taken(ask: &Arc<Ask>, record: Record, doubt: bool) -> Reservation {
    if doubt && record.token == ask.token && matches!(record.state, State::InFlight) {
        return fresh(ask, record.attempt, record.recovery_point);
    }
    Reservation::Taken(record)
}

/// Whether a record says what a settlement would have made it say. The service may have completed the key itself under
/// the same token, with another response: then that one is the answer.
fn is_settled_so(record: &Record, settlement: &Settlement) -> bool {
    match (&record.state, &settlement.ending) {
        (State::Completed(stored), Ending::Completed { response, .. }) => stored.response == *response,
        _ => true,
    }
}

/// What `settle_1` and `settle_around.sql` ask of a row, beside its token.
fn may_end_so(record: &Record, ending: &Ending) -> bool {
    match (ending, &record.state) {
        (_, State::Completed(_) | State::Expired) => false,
        (Ending::Completed { .. }, _) | (_, State::InFlight) => true,
        (Ending::Retryable { .. }, State::Unknown) => true,
        (Ending::Retryable { .. }, State::Dead) => record.accepted_at.is_none(),
        (Ending::Retryable { .. }, State::Queued | State::Retryable) | (Ending::Unknown, _) => false,
    }
}

/// What `take_over.sql` asks of a row.
fn may_be_taken(record: &Record, from: Seen) -> bool {
    let by_state = match record.state {
        State::Completed(_) | State::Expired => from.past_ttl,
        State::Dead | State::InFlight | State::Queued => false,
        State::Retryable | State::Unknown => true,
    };
    by_state && record.token == from.token && record.state.name() == from.state && (!from.past_ttl || record.past_ttl)
}

/// For how much a call is tried again until its deadline.
#[derive(Clone, Copy)]
enum Patience {
    /// Whatever happened: it does no harm twice, and not having done it does.
    Always,
    /// Only where it may have been done, as nobody can act on "perhaps"; and a few times where a connection broke while it
    /// was being made, or led to a server that takes no writes any more.
    InDoubt,
}

/// Tries until it is known what happened, or time is up. `once` is told whether an earlier try may have been executed.
async fn persist<T, F>(
    deadline: Instant,
    patience: Patience,
    mut once: impl FnMut(bool) -> F + Send,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, Failure>> + Send,
{
    let (mut doubt, mut tries, mut taken) = (false, 0, false);
    let mut pauses = Pauses::new();
    loop {
        let failure = match once(doubt).await {
            Ok(done) => return Ok(done),
            // Once somebody was seen to have the key, a later try that sees nothing takes nothing back.
            Err(failure) if taken => failure.of_taken(),
            Err(failure) => failure,
        };
        taken = matches!(failure, Failure::Taken(_));
        tries += 1;
        doubt |= failure.in_doubt();
        let again = match patience {
            Patience::Always => !failure.is_final(),
            Patience::InDoubt => {
                !failure.is_final() && (doubt || (tries < CONNECTIONS_MAX && failure.wants_another_connection()))
            }
        };
        if !again || Instant::now() + pauses.length >= deadline {
            return Err(failure.into());
        }
        pauses.next().await;
    }
}

/// Pauses that grow: short enough at first to hide a dropped connection, long enough at last not to press a server that
/// is starting.
struct Pauses {
    length: Duration,
}

impl Pauses {
    fn new() -> Self {
        Self { length: Duration::from_millis(5) }
    }

    async fn next(&mut self) {
        sleep(self.length).await;
        self.length = (self.length * 2).min(Duration::from_millis(200));
    }
}
