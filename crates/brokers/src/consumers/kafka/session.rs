//! One membership of a consumer group, from its beginning to the loss of the brokers or the end of the drain.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::assignment::{Assignment, RecordPlace};
use super::attempt::{RecordContext, RecordReport};
use super::group_member::GroupMember;
use super::member_event::MemberEvent;
use super::record::PartitionId;
use crate::consumers::disposition::doubled_pause;
use crate::consumers::session_start::{SessionError, open_session};
use oncegate_engine::gate::Gate;
use oncegate_engine::instance::consumer_states::{ConsumerState, RecordCounts};
use oncegate_settings::{Consumer, KafkaSource};

/// The time between two commits. What is read again after a crash is that much longer; each of it is a replay.
const COMMIT_INTERVAL: Duration = Duration::from_millis(500);
/// The time limit of the last commit of a partition, and of leaving the group.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The unknown outcomes in a row, beside others that were settled meanwhile, after which nothing new starts for a
/// while. A broken service turns few records unknown.
const UNKNOWN_IN_A_ROW: u32 = 16;

/// The time after which a member without partitions is worth a log line. A group usually takes seconds.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// The time between two log lines about a trouble that lasts.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(30);

/// Runs one session: from joining the group to losing the brokers, or to the end of the drain.
pub(in crate::consumers) async fn run_session(
    consumer: &Arc<Consumer>,
    source: &KafkaSource,
    gate: &Arc<Gate>,
    state: &Arc<ConsumerState>,
    stop: &CancellationToken,
) -> Result<(), SessionError> {
    let drain = gate.instance().config.drain_timeout;
    let join = async {
        let body_bytes_max = gate.max_request_body(&consumer.route).ok_or("its route is gone")?;
        GroupMember::open(source, consumer.prefetch, body_bytes_max, drain).await
    };
    let Some(member) = open_session(stop, join).await.transpose()? else { return Ok(()) };
    let (topics, brokers, group, route) =
        (consumer.source.to_string(), consumer.source.broker(), &source.group, &consumer.route);
    tracing::info!(topics, brokers, %group, %route, "records are consumed");
    state.set_connected();
    let (reports, reported) = mpsc::unbounded_channel();
    let context = Arc::new(RecordContext {
        consumer: Arc::clone(consumer),
        state: Arc::clone(state),
        source: source.clone(),
        gate: Arc::clone(gate),
        member,
        turns: Semaphore::new(consumer.prefetch.into()),
        reports,
    });
    let session = GroupSession {
        context: Arc::clone(&context),
        assignment: Assignment::new(source.order, consumer.prefetch),
        reported,
        releasing: None,
        committing: None,
        unknown_in_a_row: 0,
        starts_at: Instant::now(),
        is_full_of_parked: false,
        trouble: None,
        silent_until: Some(Instant::now() + JOIN_MAX),
        drain,
    };
    let ended = session.run(stop).await;
    if timeout(CLOSE_TIMEOUT, context.member.close()).await.is_err() {
        tracing::debug!(topics, "the brokers were not told that this member leaves; its session runs out");
    }
    match ended {
        Ok(()) => tracing::info!(topics, brokers, %group, %route, "records are no longer consumed"),
        Err(ref cause) => tracing::debug!(topics, cause, "the session has ended"),
    }
    ended.map_err(|cause| SessionError { cause, was_consuming: true })
}

/// Partitions that the group takes: what runs is awaited, and its offsets are committed, before another member gets
/// them.
struct PartitionRelease {
    partitions: Vec<PartitionId>,
    deadline: Instant,
    released: oneshot::Sender<()>,
}

type CommitResult = (Vec<(PartitionId, i64)>, Result<(), String>);

struct GroupSession {
    context: Arc<RecordContext>,
    assignment: Assignment,
    reported: mpsc::UnboundedReceiver<(RecordPlace, RecordReport)>,
    releasing: Option<PartitionRelease>,
    committing: Option<JoinHandle<CommitResult>>,
    unknown_in_a_row: u32,
    /// Nothing new starts before.
    starts_at: Instant,
    is_full_of_parked: bool,
    /// What fails at the moment, and the time at which that was logged.
    trouble: Option<(String, Instant)>,
    /// The time at which it is said that the group has given no partitions; `None` once that is said, or it has.
    silent_until: Option<Instant>,
    drain: Duration,
}

impl GroupSession {
    async fn run(mut self, stop: &CancellationToken) -> Result<(), String> {
        let context = Arc::clone(&self.context);
        let mut commits = interval(COMMIT_INTERVAL);
        commits.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_draining = false;
        loop {
            self.start_records();
            context.member.pause(self.assignment.paused());
            if let Some(release) = self.releasing.take_if(|release| self.assignment.running(&release.partitions) == 0) {
                self.release(release).await;
            }
            if is_draining && self.assignment.all_running() == 0 {
                self.commit_now().await;
                return Ok(());
            }
            let deadline = self.releasing.as_ref().map(|release| release.deadline);
            tokio::select! {
                biased;
                () = stop.cancelled(), if !is_draining => {
                    is_draining = true;
                    self.assignment.leave_all();
                }
                Some((place, report)) = self.reported.recv() => self.take(&place, report),
                committed = async { self.committing.as_mut().expect("there is a commit").await },
                    if self.committing.is_some() =>
                {
                    self.committing = None;
                    self.note_commit(committed.ok());
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    if let Some(release) = self.releasing.take() {
                        let running = self.assignment.running(&release.partitions);
                        tracing::warn!(topics = %self.context.consumer.source, running,
                            "partitions are given to other members although attempts of their records still run");
                        self.release(release).await;
                    }
                }
                () = sleep_until(self.starts_at), if self.starts_at > Instant::now() => {}
                _ = commits.tick() => {
                    self.start_commit();
                    self.note_counts().await;
                    if self.silent_until.take_if(|until| *until < Instant::now()).is_some() {
                        tracing::warn!(topics = %self.context.consumer.source, group = %self.context.source.group,
                            "the group has given this member no partitions: the topics have too few, or the brokers do not let it join");
                    }
                }
                event = context.member.next() => match event {
                    None => return Err("the client was closed".to_owned()),
                    Some(MemberEvent::Failed(cause)) => {
                        self.assignment.leave_all();
                        return Err(cause);
                    }
                    Some(event) => self.handle(event, is_draining),
                }
            }
        }
    }

    fn start_records(&mut self) {
        if self.starts_at > Instant::now() {
            return;
        }
        while let Some(started) = self.assignment.start_next() {
            tokio::spawn(Arc::clone(&self.context).handle(started));
        }
    }

    fn handle(&mut self, event: MemberEvent, is_draining: bool) {
        let topics = &self.context.consumer.source;
        match event {
            MemberEvent::Records(records) => {
                let now = Instant::now();
                records.into_iter().for_each(|record| self.assignment.push(record, now));
            }
            MemberEvent::Assigned(partitions) => {
                tracing::info!(%topics, partitions = list(&partitions), "partitions are assigned");
                self.context.state.count_rebalance();
                self.silent_until = None;
                self.assignment.add(partitions);
                if is_draining {
                    self.assignment.leave_all();
                }
            }
            MemberEvent::Revoked { partitions, released } => {
                tracing::info!(%topics, partitions = list(&partitions), "partitions are taken by the group");
                if !partitions.is_empty() {
                    self.context.state.count_rebalance();
                }
                partitions.iter().for_each(|partition| self.assignment.leave(partition));
                self.releasing = Some(PartitionRelease { partitions, deadline: Instant::now() + self.drain, released });
            }
            MemberEvent::Lost(partitions) => {
                tracing::warn!(%topics, partitions = list(&partitions),
                    "partitions are lost: the group has heard nothing of this member for too long");
                self.context.state.count_rebalance();
                partitions.iter().for_each(|partition| self.assignment.remove(partition));
            }
            MemberEvent::Stuck { partition, cause } => {
                self.assignment.note_stuck(&partition);
                tracing::error!(%topics, %partition, cause,
                    "a partition stands still: its next batch cannot be decoded. It is not skipped, and is read again every 10 s");
            }
            MemberEvent::Trouble(cause) => {
                let is_new =
                    self.trouble.as_ref().is_none_or(|(known, at)| *known != cause || at.elapsed() > TROUBLE_INTERVAL);
                if is_new {
                    tracing::warn!(%topics, cause, "records cannot be read at the moment");
                    self.context.state.set_disconnected(cause.clone());
                    self.trouble = Some((cause, Instant::now()));
                }
            }
            MemberEvent::Recovered => {
                self.trouble = None;
                self.context.state.set_connected();
            }
            MemberEvent::Failed(_) => unreachable!("it ends the session"),
        }
    }

    fn take(&mut self, place: &RecordPlace, report: RecordReport) {
        match report {
            RecordReport::Settled => {
                self.unknown_in_a_row = 0;
                self.assignment.settle(place);
            }
            RecordReport::GivenBack => self.assignment.give_back(place),
            RecordReport::Parked => {
                self.assignment.park(place);
                self.unknown_in_a_row += 1;
                if self.unknown_in_a_row.is_multiple_of(UNKNOWN_IN_A_ROW) {
                    self.starts_at = Instant::now() + doubled_pause(self.unknown_in_a_row / UNKNOWN_IN_A_ROW);
                }
            }
        }
        let is_full = self.assignment.is_full_of_parked();
        if is_full && !self.is_full_of_parked {
            tracing::warn!(topics = %self.context.consumer.source, route = %self.context.consumer.route,
                "no more records of unknown outcome may be parked: the topics stand still until the outcome of some is known or they are \
                 dead letters");
        }
        self.is_full_of_parked = is_full;
    }

    /// Commits in the background what may be committed, one commit at a time.
    fn start_commit(&mut self) {
        let offsets = self.assignment.committable();
        if offsets.is_empty() || self.committing.is_some() {
            return;
        }
        let context = Arc::clone(&self.context);
        self.committing = Some(tokio::spawn(async move {
            let result = context.member.commit(&offsets).await;
            (offsets, result)
        }));
    }

    fn note_commit(&mut self, committed: Option<CommitResult>) {
        match committed {
            Some((offsets, Ok(()))) => self.assignment.note_committed(&offsets),
            // The next commit has these offsets too. Without it, the records are read again and replayed.
            Some((_, Err(cause))) => {
                tracing::warn!(topics = %self.context.consumer.source, cause, "offsets were not committed; that is tried again");
            }
            None => {}
        }
    }

    /// Commits what may be committed, after the commit that is under way.
    async fn commit_now(&mut self) {
        let commit = async {
            if let Some(running) = self.committing.take() {
                let committed = running.await.ok();
                self.note_commit(committed);
            }
            let offsets = self.assignment.committable();
            if !offsets.is_empty() {
                let result = self.context.member.commit(&offsets).await;
                self.note_commit(Some((offsets, result)));
            }
        };
        if timeout(CLOSE_TIMEOUT, commit).await.is_err() {
            tracing::warn!(topics = %self.context.consumer.source,
                "offsets were not committed in time; their records are read again and replayed");
        }
    }

    /// Gives partitions back, after their last commit.
    async fn release(&mut self, release: PartitionRelease) {
        self.commit_now().await;
        release.partitions.iter().for_each(|partition| self.assignment.remove(partition));
        let _ = release.released.send(());
    }

    /// Tells operators what the records do.
    async fn note_counts(&self) {
        let counts = self.assignment.counts(Instant::now());
        let offsets = self.context.member.offsets().await;
        let lag = offsets.into_iter().filter_map(|offsets| {
            let first = self.assignment.settled_before(&offsets.partition).or(offsets.position)?;
            u64::try_from(offsets.end? - first).ok()
        });
        self.context.state.set_records(RecordCounts { lag: lag.sum(), ..counts });
    }
}

fn list(partitions: &[PartitionId]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
