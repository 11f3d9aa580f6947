//! The primary that this process may use. If several servers of the URL take writes, the newest timeline decides.
//!
//! Each promotion begins a timeline with a higher number. A server that takes writes on a lower one is a former
//! primary: it was cut off, or its failover agent has died, and what it commits is lost. All instances that see both
//! servers choose the same one without asking each other.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio_postgres::{Client, Row};

use super::failure::without_detail;
use super::tls::BoxError;

const SERVER_ROLE: &str = include_str!("sql/server_role.sql");

/// The answer of a server to the question whether it takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerRole {
    Primary(PrimaryIdentity),
    /// A standby, or a server that was made read-only.
    ReadOnly,
    /// It does not answer the question, as a server does that is not quite PostgreSQL. It is compared with none.
    Unidentified,
}

/// A server that takes writes, as it can be told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PrimaryIdentity {
    pub timeline: u32,
    /// The system identifier of its database cluster, which all copies share.
    pub system: i64,
    /// When it started, in microseconds since 1970.
    pub started_at_us: i64,
}

impl ServerRole {
    pub async fn ask(client: &Client) -> Result<Self, BoxError> {
        let row = ask_server(client, SERVER_ROLE).await?;
        Ok(row.and_then(|row| Self::from_row(&row)).unwrap_or(Self::Unidentified))
    }

    fn from_row(row: &Row) -> Option<Self> {
        if !row.try_get::<_, bool>("takes_writes").ok()? {
            return Some(Self::ReadOnly);
        }
        let wal_file: &str = row.try_get("wal_file").ok()?;
        Some(Self::Primary(PrimaryIdentity {
            system: row.try_get("system").ok()?,
            timeline: u32::from_str_radix(wal_file.get(..8)?, 16).ok()?,
            started_at_us: row.try_get("started_at_us").ok()?,
        }))
    }
}

/// Asks a server which one it is. `None` where it does not say so.
///
/// # Errors
/// The connection is lost.
pub(super) async fn ask_server(client: &Client, question: &str) -> Result<Option<Row>, BoxError> {
    match client.query_typed_one(question, &[]).await {
        Ok(row) => Ok(Some(row)),
        Err(error) if error.as_db_error().is_some() && !client.is_closed() => {
            tracing::debug!(cause = %without_detail(error), "a server of the store does not say which one it is");
            Ok(None)
        }
        Err(error) => Err(without_detail(error)),
    }
}

/// The primary that this process knows: connections to any other server are refused.
#[derive(Debug, Default)]
pub(super) struct KnownPrimary {
    state: watch::Sender<PrimaryState>,
    /// Whether a server that was used is refused since the last [`Self::take_change`].
    has_changed: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PrimaryState {
    /// The database cluster, and its newest timeline that was seen. It is never forgotten: a former primary stays one
    /// while its successor is away.
    newest: Option<(i64, u32)>,
    conflict: Option<PrimaryConflict>,
}

/// Servers that take writes, of which none can be preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PrimaryConflict {
    #[error(
        "servers of store.url that take writes belong to different database clusters (system identifiers {0} and {1})"
    )]
    Clusters(i64, i64),
    #[error("several servers of store.url take writes on the same timeline {0}")]
    Timeline(u32),
}

/// The reason why a server that takes writes is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PrimaryRefusal {
    #[error("{0}; none of them is used")]
    Conflict(PrimaryConflict),
    #[error("a former primary: it writes timeline {timeline}, and timeline {newest} exists")]
    Former { timeline: u32, newest: u32 },
    #[error(
        "it belongs to another database cluster than the server that was used first \
         (system identifiers {system} and {known}); restart Oncegate if that is wanted"
    )]
    Foreign { system: i64, known: i64 },
}

impl KnownPrimary {
    /// Admits a connection to this server, and refuses the existing ones to servers with an older timeline.
    ///
    /// # Errors
    /// The reason why the server is not used.
    pub fn admit(&self, server: PrimaryIdentity) -> Result<(), PrimaryRefusal> {
        let mut refusal = None;
        self.update(|state| {
            refusal = state.refusal_of(server);
            if refusal.is_some() { state } else { state.seen(server) }
        });
        refusal.map_or(Ok(()), Err)
    }

    /// Records all servers that take writes at the same time, each once. Returns the conflict between them.
    // See docs/decisions/0008-follow-the-newest-timeline.md.
    pub fn record(&self, primaries: &[PrimaryIdentity]) -> Option<PrimaryConflict> {
        self.update(|state| state.after(primaries)).conflict
    }

    /// Whether a server that this process used was refused since the last call.
    pub fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::AcqRel)
    }

    /// Whether a server that this process used was refused since the last [`Self::take_change`].
    pub fn has_change(&self) -> bool {
        self.has_changed.load(Ordering::Acquire)
    }

    pub async fn refused(&self, server: PrimaryIdentity) -> PrimaryRefusal {
        let mut states = self.state.subscribe();
        // The sender lives as long as `self`.
        let refused = states.wait_for(|state| state.refusal_of(server).is_some()).await;
        let refusal = refused.ok().and_then(|state| state.refusal_of(server));
        match refusal {
            Some(refusal) => refusal,
            None => std::future::pending().await,
        }
    }

    fn update(&self, next: impl FnOnce(PrimaryState) -> PrimaryState) -> PrimaryState {
        let mut updated = PrimaryState::default();
        self.state.send_if_modified(|state| {
            let before = std::mem::replace(state, next(*state));
            if state.refuses_more_than(before) {
                self.has_changed.store(true, Ordering::Release);
            }
            updated = *state;
            before != updated
        });
        updated
    }
}

impl PrimaryState {
    fn refusal_of(self, server: PrimaryIdentity) -> Option<PrimaryRefusal> {
        if let Some(conflict) = self.conflict {
            return Some(PrimaryRefusal::Conflict(conflict));
        }
        let PrimaryIdentity { system, timeline, .. } = server;
        match self.newest? {
            (known, _) if known != system => Some(PrimaryRefusal::Foreign { system, known }),
            (_, newest) if timeline < newest => Some(PrimaryRefusal::Former { timeline, newest }),
            _ => None,
        }
    }

    /// The state once a server of the known cluster was seen.
    fn seen(self, server: PrimaryIdentity) -> Self {
        let newest = self.newest.map_or(0, |(_, newest)| newest).max(server.timeline);
        Self { newest: Some((server.system, newest)), ..self }
    }

    /// The state after a look that found these servers, each once.
    fn after(self, primaries: &[PrimaryIdentity]) -> Self {
        let conflict = conflict(primaries);
        let known = |server: &&PrimaryIdentity| self.newest.is_none_or(|(system, _)| system == server.system);
        let newest = primaries.iter().filter(known).max_by_key(|server| server.timeline);
        let state = Self { conflict, ..self };
        match newest {
            Some(newest) if conflict.is_none() => state.seen(*newest),
            _ => state,
        }
    }

    /// Whether servers are refused that were not refused before.
    fn refuses_more_than(self, before: Self) -> bool {
        (self.conflict.is_some() && self.conflict != before.conflict)
            || (before.newest.is_some() && self.newest != before.newest)
    }
}

/// The conflict between servers that take writes at the same time.
fn conflict(primaries: &[PrimaryIdentity]) -> Option<PrimaryConflict> {
    let newest = primaries.iter().max_by_key(|server| server.timeline)?;
    if let Some(other) = primaries.iter().find(|server| server.system != newest.system) {
        return Some(PrimaryConflict::Clusters(newest.system.min(other.system), newest.system.max(other.system)));
    }
    let on_newest = primaries.iter().filter(|server| server.timeline == newest.timeline).count();
    (on_newest > 1).then_some(PrimaryConflict::Timeline(newest.timeline))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of cluster 7.
    fn server(timeline: u32, started_at_us: i64) -> PrimaryIdentity {
        PrimaryIdentity { system: 7, timeline, started_at_us }
    }

    fn foreign(timeline: u32) -> PrimaryIdentity {
        PrimaryIdentity { system: 8, timeline, started_at_us: 80 }
    }

    fn known(primaries: &[PrimaryIdentity]) -> KnownPrimary {
        let known = KnownPrimary::default();
        known.record(primaries);
        known
    }

    const FORMER: Result<(), PrimaryRefusal> = Err(PrimaryRefusal::Former { timeline: 1, newest: 2 });

    #[test]
    fn of_two_primaries_the_newer_timeline_is_used() {
        let known = known(&[server(1, 10), server(2, 20)]);
        assert_eq!((known.admit(server(1, 10)), known.admit(server(2, 20))), (FORMER, Ok(())));
        known.record(&[]);
        known.record(&[server(1, 10)]);
        assert_eq!(known.admit(server(1, 10)), FORMER, "also while its successor is away");
        assert_eq!(known.admit(server(3, 30)), Ok(()));
        assert_eq!(known.admit(server(2, 20)), Err(PrimaryRefusal::Former { timeline: 2, newest: 3 }));
    }

    #[test]
    fn a_newer_timeline_or_a_conflict_is_a_change_once() {
        let known = known(&[server(1, 10)]);
        assert!(!known.take_change(), "the first primary replaces none");
        known.admit(server(1, 10)).unwrap();
        assert!(!known.take_change());
        known.admit(server(2, 20)).unwrap();
        assert!(known.has_change() && known.has_change());
        assert_eq!((known.take_change(), known.take_change()), (true, false));
        assert!(!known.has_change());
        for _ in 0..2 {
            known.record(&[server(2, 20), server(2, 30)]);
        }
        assert_eq!((known.take_change(), known.take_change()), (true, false));
        known.record(&[server(2, 30)]);
        assert!(!known.take_change(), "the end of a conflict refuses nobody");
        assert_eq!(known.admit(server(2, 30)), Ok(()));
    }

    #[test]
    fn of_two_primaries_on_one_timeline_none_is_used() {
        let same = PrimaryConflict::Timeline(2);
        let known = known(&[server(2, 20), server(2, 30), server(1, 10)]);
        for started_at_us in [20, 30] {
            assert_eq!(known.admit(server(2, started_at_us)), Err(PrimaryRefusal::Conflict(same)));
        }
        assert_eq!(known.record(&[server(1, 10), server(1, 11), server(2, 20)]), None, "the newest decides");
        assert_eq!(known.admit(server(2, 20)), Ok(()));
    }

    #[test]
    fn primaries_of_different_clusters_are_refused() {
        let known = known(&[server(1, 10)]);
        assert_eq!(known.admit(foreign(9)), Err(PrimaryRefusal::Foreign { system: 8, known: 7 }));
        assert_eq!(known.record(&[foreign(9)]), None);
        assert_eq!(known.admit(server(1, 10)), Ok(()), "it is not a later timeline of the same cluster");
        assert_eq!(known.record(&[server(1, 10), foreign(9)]), Some(PrimaryConflict::Clusters(7, 8)));
        assert!(known.admit(server(1, 10)).is_err());
    }
}
