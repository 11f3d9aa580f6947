//! Reading the rows of deliveries, for both stores.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::row::{self, RowReader, millis};
use oncegate_domain::attempt::{AttemptLease, ReplacedRecord, ReserveRequest};
use oncegate_domain::delivery::{DeliveryJob, DeliveryPolicy, PickUpRequest};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::DeliveryAttempt;
use oncegate_domain::sealed::SealedBytes;

/// The time after its deadline for which an unknown attempt may still be running, in milliseconds; `None` where the
/// route accepts that.
pub fn quiet_after(policy: &DeliveryPolicy) -> Option<i64> {
    match policy.on_unknown {
        OnUnknown::Retry | OnUnknown::Vendor => None,
        OnUnknown::Hold | OnUnknown::RetryWhenQuiet => Some(millis(policy.quiet_after)),
    }
}

/// The record of a delivery, the token of the attempt, and the token before it.
pub type AttemptTokens = (RecordId, Token, Token);

pub fn read_job(
    row: &impl RowReader,
    (id, token, taken_from): AttemptTokens,
    request: &PickUpRequest,
    policy: &DeliveryPolicy,
) -> Result<DeliveryJob, CorruptRow> {
    let reserve_request = ReserveRequest {
        id,
        service: Arc::clone(&request.service),
        scope: row.read("scope")?,
        space: row.read("space")?,
        key: row.read("key")?,
        path: row.read("path")?,
        route: Arc::clone(&policy.route),
        recipe: row::recipe(row)?,
        fingerprint: row.read("fingerprint")?,
        // Those of a later version explain nothing, and the request is delivered all the same.
        parts: row.read::<Option<Vec<u8>>>("parts")?.and_then(|bits| PartBits::from_stored(&bits)),
        // The record has what operators look for. Only a failover that loses it takes that away.
        trace_id: None,
        client_address: None,
        lookups: None,
        instance: request.instance,
        token,
        time_limit: policy.time_limit,
        holder: None,
    };
    let accepted_at: Option<SystemTime> = row.read("accepted_at")?;
    let give_up_in = match accepted_at {
        Some(_) => row.read::<Duration>("give_up_in_ms")?,
        // It ends with its window.
        None => Duration::MAX,
    };
    let delivery = DeliveryAttempt { accepted_at, number: row.read::<u32>("spent")?.saturating_add(1), give_up_in };
    Ok(DeliveryJob {
        lease: AttemptLease {
            reserve_request: Arc::new(reserve_request),
            attempt: row.read("attempt")?,
            // Only queued and unknown keys are picked up.
            taken_from: Some(ReplacedRecord { token: taken_from, was_completed: false }),
            recovery_point: row.read("recovery_point")?,
            delivery: Some(delivery),
        },
        sealed: SealedBytes { secret: row.read("secret")?, bytes: row.read("sealed")? },
    })
}
