//! Asynchronous deliveries: the ones that are due become attempts.

use std::collections::HashMap;
use std::iter::repeat;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_postgres::{Error, Row};

use super::client::{PgClient, parameters};
use super::failure::PgResult;
use super::rows::changed;
use super::{PgTry, functions};
use crate::GiveUpParams;
use crate::columns::columns;
use crate::deliveries::{quiet_after, read_job};
use crate::row::{RowReader, millis};
use crate::statement::{Statement, statements};
use oncegate_domain::delivery::{DeliveryPolicy, GivenUpKey, PickUpRequest, PickUpResult};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response::CorruptRow;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::state::StateKind;

statements! { "sql/":
    QUEUED_DELIVERIES = "queued_deliveries";
    UNKNOWN_DELIVERIES = "unknown_deliveries";
}

/// The end of a selection whose rows are locked until they are attempts. Only on plain PostgreSQL: several deliverers
/// get different keys by it. No cluster locks rows of several nodes.
const SKIP_LOCKED: &str = " for no key update of k skip locked";

struct SelectedDelivery<'a> {
    policy: &'a DeliveryPolicy,
    id: RecordId,
    seen_token: Token,
    seen_state: StateKind,
    /// Since when it is due.
    since: i64,
}

impl PgTry<'_> {
    pub async fn pick_up(self, request: Arc<PickUpRequest>) -> PgResult<PickUpResult> {
        let request = &*request;
        self.call_each(&functions::END_DELIVERY, &request.delivered, |id| columns! { id: id }).await?;
        let discounted = self.call_each(&functions::DISCOUNT_ATTEMPT, &request.unsent, |(id, token)| {
            columns! { id: id, token: token }
        });
        discounted.await?;

        let started = self.on_connection(async |client| match client.is_distributed() {
            // Each in a transaction of its own: other deliverers may select the same, and only one starts it.
            true => begun(start(client, request, "").await?),
            false => in_transaction(client, request).await,
        });
        let mut picked = PickUpResult::default();
        for (due, token, row) in started.await? {
            let Some(row) = row? else { continue };
            match (row.read::<Option<String>>("note")?, token) {
                (Some(note), _) => {
                    picked.given_up.push(GivenUpKey { id: due.id, route: (*due.policy.route).into(), note })
                }
                (None, None) => {}
                // A row that cannot be read is not sent, and its attempt is released as an orphan; the others are
                // delivered.
                (None, Some(token)) => match read_job(&row, (due.id, token, due.seen_token), request, due.policy) {
                    Ok(job) => picked.jobs.push(job),
                    Err(corrupt) => {
                        tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered")
                    }
                },
            }
        }
        Ok(picked)
    }

    pub async fn give_up(self, params: Arc<GiveUpParams>) -> PgResult<bool> {
        let states: Vec<&str> = params.states.iter().map(|state| state.name()).collect();
        let columns =
            columns! { id: &params.id, token: &params.token, states: states.join(","), note: params.note.as_str() };
        Ok(self.call(&functions::GIVE_UP, columns).await?.is_some())
    }
}

/// A delivery, the token that its attempt may use, and the row of the attempt where it has begun, or of the key that
/// was given up.
type Started<'a> = (SelectedDelivery<'a>, Option<Token>, Result<Option<Row>, CorruptRow>);

async fn in_transaction<'a>(client: &PgClient, request: &'a PickUpRequest) -> Result<Vec<Started<'a>>, Error> {
    client.batch_execute("begin").await?;
    match start(client, request, SKIP_LOCKED).await.and_then(|started| started.into_iter().collect()) {
        Ok(started) => client.batch_execute("commit").await.map(|()| started),
        Err(error) => {
            // The first error is the one to return.
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}

/// Those that were started; the first error where none was.
fn begun<'a>(started: Vec<Result<Started<'a>, Error>>) -> Result<Vec<Started<'a>>, Error> {
    let (begun, failed): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
    match failed.into_iter().find_map(Result::err) {
        Some(error) if begun.is_empty() => return Err(error),
        Some(error) => tracing::debug!(%error, "a delivery was not started; the next pass tries again"),
        None => {}
    }
    begun.into_iter().collect()
}

async fn start<'a>(
    client: &PgClient,
    request: &'a PickUpRequest,
    end: &str,
) -> Result<Vec<Result<Started<'a>, Error>>, Error> {
    let due = select(client, request, end).await?;
    // Where there is no token left, a key can still be given up.
    let tokens = request.tokens.iter().map(Some).chain(repeat(None));
    let calls = due.into_iter().zip(tokens).map(|(due, token)| async move {
        let policy = due.policy;
        let columns = columns! {
            id: &due.id,
            seen_token: &due.seen_token,
            seen_state: due.seen_state,
            token: token,
            instance: request.instance,
            time_limit_ms: millis(policy.time_limit),
            max_attempts: policy.retry.max_attempts.cast_signed(),
            give_up_after_ms: millis(policy.retry.give_up_after),
            quiet_after_ms: quiet_after(policy),
            repeat_within_ms: policy.repeat_within.map(millis),
            as_of: request.as_of,
        };
        let rows = client.call(&functions::START_DELIVERY, &columns).await?;
        Ok((due, token.copied(), changed(rows)))
    });
    Ok(join_all(calls).await)
}

/// Selects the deliveries that have been due for longest, of each route no more than it has slots, and of all no more
/// than the request asks for.
async fn select<'a>(
    client: &PgClient,
    request: &'a PickUpRequest,
    end: &str,
) -> Result<Vec<SelectedDelivery<'a>>, Error> {
    let statements = request.policies.iter().flat_map(|policy| {
        let unknown = (policy.on_unknown != OnUnknown::Hold).then_some(&UNKNOWN_DELIVERIES);
        [Some(&QUEUED_DELIVERIES), unknown].into_iter().flatten().map(move |statement| (policy, statement))
    });
    let selections = statements.map(|(policy, statement): (&'a DeliveryPolicy, &'static Statement)| async move {
        let columns = columns! {
            service: &*request.service,
            route: &*policy.route,
            quiet_after_ms: quiet_after(policy),
            as_of: request.as_of,
            limit: i64::try_from(policy.slots + request.busy.len()).unwrap_or(i64::MAX),
        };
        let sql = format!("{}\n{end}", statement.for_postgres());
        let rows = client.query_typed(&sql, &parameters(statement.parameters(&columns))).await?;
        Ok::<_, Error>((policy, rows))
    });
    let mut due = Vec::new();
    for selection in join_all(selections).await {
        let (policy, rows) = selection?;
        for row in &rows {
            let read = || {
                let (id, seen_token) = (row.read("id")?, row.read("token")?);
                let (seen_state, since) = (row.read("state")?, row.read("since")?);
                Ok::<_, CorruptRow>(SelectedDelivery { policy, id, seen_token, seen_state, since })
            };
            match read() {
                // An attempt that ended on this instance and is not stored yet: a new token would fence its settlement.
                Ok(due) if request.busy.contains(&due.id) => {}
                Ok(found) => due.push(found),
                Err(corrupt) => tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered"),
            }
        }
    }
    // So that queued keys do not starve unknown ones.
    due.sort_by_key(|due| due.since);
    let mut selected = HashMap::<&str, usize>::new();
    due.retain(|due| {
        let of_route = selected.entry(&due.policy.route).or_default();
        *of_route += 1;
        *of_route <= due.policy.slots
    });
    due.truncate(request.rows_max());
    Ok(due)
}
