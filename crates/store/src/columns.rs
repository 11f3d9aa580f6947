//! The values that calls send to a database, by the names of their columns: one list for both stores.

use std::borrow::Cow;
use std::error::Error;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::admin::{ListOrder, OperatorAction, SCAN_ROWS_MAX, Target};
use super::row::{millis, since_1970_ms};
use super::{ExpectedRecord, LeaseRenewal, ListSettledKeysParams};
use crate::{
    AddWeeklyCountsParams, ApplyOperatorDecisionParams, ForgetCallerParams, ListKeysParams, TendWeeklyCountsParams,
};
use oncegate_domain::attempt::{AttemptLease, AttemptOutcome, ReserveRequest, Settlement};
use oncegate_domain::delivery::EnqueueRequest;
use oncegate_domain::fingerprint::Fingerprint;
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::inquiry::{InquiryFinding, InquiryVerdict};
use oncegate_domain::kept_path;
use oncegate_domain::key::Key;
use oncegate_domain::key_holder::KeyHolder;
use oncegate_domain::lookup::LookupHashes;
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;
use oncegate_domain::state::StateKind;

/// Defines [`Value`]: the kinds of values, each with its type in PostgreSQL and the type of an array of them.
macro_rules! values {
    ($($kind:ident($type:ty): $postgres:ident, $array:ident;)+) => {
        #[derive(Clone, Debug)]
        pub enum Value<'a> { $($kind(Option<$type>),)+ }

        impl Value<'_> {
            pub fn postgres_type(&self) -> Type {
                match self { $(Self::$kind(_) => Type::$postgres,)+ }
            }

            pub fn postgres_array_type(&self) -> Type {
                match self { $(Self::$kind(_) => Type::$array,)+ }
            }
        }

        impl ToSql for Value<'_> {
            fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Send + Sync>> {
                match self { $(Self::$kind(value) => value.to_sql(kind, out),)+ }
            }

            fn accepts(kind: &Type) -> bool {
                [$(Type::$postgres),+].contains(kind)
            }

            to_sql_checked!();
        }
    };
}

values! {
    Bool(bool): BOOL, BOOL_ARRAY;
    Bytes(Cow<'a, [u8]>): BYTEA, BYTEA_ARRAY;
    Int2(i16): INT2, INT2_ARRAY;
    Int4(i32): INT4, INT4_ARRAY;
    Int8(i64): INT8, INT8_ARRAY;
    Text(Cow<'a, str>): TEXT, TEXT_ARRAY;
}

pub type Columns<'a> = Vec<(&'static str, Value<'a>)>;

/// Lists the columns of a call, and others after them: `columns! { id: &request.id, limit: 10_i64, ..seen(from) }`.
macro_rules! columns {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), $crate::columns::Value::from($value))),*]
    };
    ($($name:ident: $value:expr,)* $(..$others:expr),+ $(,)?) => {{
        let mut columns = $crate::columns::columns! { $($name: $value),* };
        $(columns.extend($others);)+
        columns
    }};
}
pub(super) use columns;

/// Defines a list of columns, with their types in PostgreSQL, and the function that returns their values. The columns
/// are also the parameters of the functions that write them, so PostgreSQL refuses a call where a type differs.
macro_rules! column_list {
    ($(#[$about:meta])* $list:ident, $values:ident($($of:ident: $type:ty),+) {
        $($name:ident $kind:ident: $value:expr,)+
    }) => {
        $(#[$about])*
        pub(super) const $list: &[(&str, &str)] = &[$((stringify!($name), stringify!($kind))),+];

        $(#[$about])*
        pub fn $values($($of: $type),+) -> Columns<'_> {
            columns! { $($name: $value),+ }
        }
    };
}

column_list! {
    /// The columns that a reservation writes.
    RESERVATION, reservation(request: &ReserveRequest) {
        id bytea: &request.id,
        service text: &*request.service,
        scope bytea: &request.scope,
        space bytea: &request.space,
        key bytea: &request.key,
        path bytea: request.path.as_deref(),
        route text: &*request.route,
        recipe text: request.recipe.to_stored(),
        fingerprint bytea: &request.fingerprint,
        parts bytea: request.parts.as_ref().map(PartBits::as_bytes),
        trace_id bytea: request.trace_id.as_ref().map(|trace| &trace[..]),
        client_address text: request.client_address.map(|address| address.to_string()),
        lookups bytea: request.lookups.as_ref(),
        instance bigint: request.instance,
        token bytea: &request.token,
        holder bytea: request.holder.as_ref(),
    }
}

/// Those of them that the next attempt of the key writes anew.
pub(super) const ATTEMPT: [&str; 12] = [
    // The same as before, but where the record was redacted.
    "key",
    "space",
    "path",
    "route",
    "recipe",
    "fingerprint",
    "parts",
    "trace_id",
    "client_address",
    "lookups",
    "instance",
    "token",
];

column_list! {
    /// The columns of a response, which are empty where there is none.
    RESPONSE, response(response: Option<&StoredResponse>, remember: Option<Duration>) {
        remember_ms bigint: remember.map(millis),
        status smallint: response.map(|response| response.status.as_u16().cast_signed()),
        fields bytea: response.map(StoredResponse::encode_fields),
        body bytea: response.and_then(|response| response.body.as_deref()),
    }
}

/// The column that an outcome writes besides its response, the state and the times.
pub(super) const CAUSE: &[(&str, &str)] = &[("cause", "text")];

/// The columns that the next attempt of a key writes anew, and the id.
pub fn next_attempt(request: &ReserveRequest) -> Columns<'_> {
    let mut columns = reservation(request);
    columns.retain(|(name, _)| *name == "id" || ATTEMPT.contains(name));
    columns
}

/// The columns of a key with its request, and of the record that it is compared with.
pub fn kept<'a>(request: &'a EnqueueRequest, from: Option<&'a ExpectedRecord>) -> Columns<'a> {
    columns! {
        secret: &*request.sealed.secret,
        sealed: &request.sealed.bytes,
        ..reservation(&request.reserve_request),
        ..seen(from),
    }
}

/// The columns of a record that is compared with the one that was seen; empty where none was.
pub fn seen(from: Option<&ExpectedRecord>) -> Columns<'_> {
    columns! {
        seen_token: from.map(|from| &from.token),
        seen_state: from.map(|from| from.state),
        past_ttl_at: from.and_then(|from| from.past_ttl_at),
        redelivered: from.is_some_and(|from| from.is_redelivered),
    }
}

pub fn outcome(outcome: &AttemptOutcome) -> Columns<'_> {
    let (state, ttl, remember, response, cause) = match outcome {
        AttemptOutcome::Completed { response, ttl, remember } => {
            (StateKind::Completed, Some(*ttl), *remember, Some(&**response), None)
        }
        AttemptOutcome::Retryable { ttl } => (StateKind::Retryable, Some(*ttl), None, None, None),
        AttemptOutcome::Unknown(cause) => (StateKind::Unknown, None, None, None, Some(cause.to_string())),
    };
    columns! {
        state: state,
        ttl_ms: ttl.map(millis),
        cause: cause,
        ..self::response(response, remember),
    }
}

/// The columns of a whole record that is written anew: those of the reservation that was lost, and those of its
/// outcome.
pub fn restored<'a>(lost: &'a AttemptLease, settlement: &'a Settlement) -> Columns<'a> {
    columns! {
        time_limit_ms: millis(lost.reserve_request.time_limit),
        due_ms: settlement.retry_in.map(millis),
        attempt: lost.attempt.cast_signed(),
        accepted_at: lost.delivery.and_then(|delivery| delivery.accepted_at),
        replaced_token: lost.taken_from.as_ref().map(|replaced| &replaced.token),
        replaced_was_completed: lost.taken_from.map(|replaced| replaced.was_completed),
        ..reservation(&lost.reserve_request),
        ..outcome(&settlement.outcome),
    }
}

fn action(verdict: &InquiryVerdict) -> &'static str {
    match verdict {
        InquiryVerdict::Dead => "give_up",
        InquiryVerdict::Completed { .. } | InquiryVerdict::Open { .. } | InquiryVerdict::Retryable { .. } => "resolve",
    }
}

pub fn finding(finding: &InquiryFinding) -> Columns<'_> {
    let (absences, ttl, remember, response) = match &finding.verdict {
        InquiryVerdict::Completed { response, ttl, remember } => (None, Some(*ttl), *remember, Some(&**response)),
        InquiryVerdict::Dead => (None, None, None, None),
        InquiryVerdict::Open { absences } => (Some(absences.cast_signed()), None, None, None),
        InquiryVerdict::Retryable { ttl } => (None, Some(*ttl), None, None),
    };
    columns! {
        id: &finding.id,
        token: &finding.token,
        inquiry: finding.inquiry.cast_signed(),
        state: finding.verdict.state(),
        action: action(&finding.verdict),
        absences: absences,
        ttl_ms: ttl.map(millis),
        note: &*finding.note,
        ..self::response(response, remember),
    }
}

pub fn lease_renewal(renewal: &LeaseRenewal) -> Columns<'_> {
    columns! {
        id: renewal.instance,
        services: &*renewal.services,
        expiry_ms: millis(renewal.expiry),
        purges_seen: renewal.purges_seen.map(|seen| i64::try_from(seen).unwrap_or(i64::MAX)),
        hold_ttls_until: renewal.hold_ttls_until,
    }
}

pub fn weekly_counts(params: &AddWeeklyCountsParams) -> Columns<'_> {
    let counts = serde_json::json!(params.counts).to_string();
    columns! { instance: params.instance, batch: params.batch, counts: counts }
}

pub fn tended_counts(params: &TendWeeklyCountsParams) -> Columns<'_> {
    columns! { service: &*params.service, route: &*params.route, limit: params.callers_max as i64 }
}

pub fn forgotten_caller(params: &ForgetCallerParams) -> Columns<'_> {
    columns! { service: &*params.service, caller: &*params.caller, replacement: &*params.replacement }
}

pub fn settled_keys(params: &ListSettledKeysParams) -> Columns<'_> {
    columns! {
        service: &*params.service,
        since_ms: millis(params.since),
        after: params.after.as_ref().map_or(&[][..], |id| id.as_bytes().as_slice()),
        limit: i64::from(params.limit),
    }
}

pub fn key_list(params: &ListKeysParams) -> Columns<'_> {
    let ListKeysParams { service, filter, after, limit } = params;
    let until = filter.created_until.map_or(i64::MAX, since_1970_ms);
    let path = filter.path.as_deref();
    let (at, from) = match (after, filter.order()) {
        (Some(cursor), ListOrder::Newest) => (cursor.at_ms, cursor.id.as_bytes().to_vec()),
        (None, ListOrder::Newest) => (until, Vec::new()),
        // The smallest bytes that sort after the id.
        (Some(cursor), _) => (cursor.at_ms, [cursor.id.as_bytes(), &[0][..]].concat()),
        (None, _) => (0, Vec::new()),
    };
    columns! {
        service: &**service,
        from: from,
        at: at,
        low: &filter.ids.low[..],
        high: &filter.ids.high[..],
        state: filter.state,
        scope_low: filter.scope.as_ref().map(|scope| &scope.low[..]),
        scope_high: filter.scope.as_ref().map(|scope| &scope.high[..]),
        route: filter.route.as_deref(),
        key: filter.key.as_deref(),
        path: path.map(str::as_bytes),
        people_path: path.map(|path| kept_path::keep_path(path).to_vec()),
        path_length: i32::try_from(path.map_or(0, str::len)).unwrap_or(i32::MAX),
        older_than_ms: filter.older_than.map(millis),
        created_from: filter.created_from.map_or(0, since_1970_ms),
        created_until: until,
        lookup: filter.lookup.as_ref().map(|lookup| &lookup[..]),
        scan_limit: i64::from(SCAN_ROWS_MAX),
        limit: i64::from(*limit),
    }
}

pub fn decision<'a>(params: &'a ApplyOperatorDecisionParams, target: &'a Target) -> Columns<'a> {
    let ApplyOperatorDecisionParams { service, decision, .. } = params;
    columns! {
        id: &target.id,
        token: &target.token,
        seen_state: target.state,
        service: &**service,
        actor: &*decision.actor,
        action: decision.change.action(),
        note: decision.audit_note(target),
    }
}

/// The values of a redacted record's columns that are never null: no key, no space, and the fields of a response
/// without any.
pub fn redacted() -> Columns<'static> {
    let (headers, trailers) = (HeaderMap::new(), HeaderMap::new());
    let response = StoredResponse { status: StatusCode::OK, headers, body: None, trailers };
    columns! { nothing: Vec::new(), no_space: vec![0; 32], no_fields: response.encode_fields() }
}

/// The columns that a decision about a key writes, except for a purge.
pub fn decided<'a>(params: &'a ApplyOperatorDecisionParams, target: &'a Target) -> Columns<'a> {
    let decision = &params.decision;
    let response = decision.response(target).map(|response| &**response);
    let forgets = !matches!(decision.change, OperatorAction::Requeue);
    columns! {
        new_token: &target.new_token,
        state: decision.change.resulting_state_name(target.state),
        ttl_ms: forgets.then(|| millis(target.ttl)),
        quiet_after_ms: decision.requires_quiet(target).then(|| millis(target.quiet_after)),
        ..self::response(response, response.and(target.remember)),
    }
}

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self {
            Self::Bool(value) => value.map(|value| ValueRef::Integer(value.into())),
            Self::Bytes(value) => value.as_deref().map(ValueRef::Blob),
            Self::Int2(value) => value.map(|value| ValueRef::Integer(value.into())),
            Self::Int4(value) => value.map(|value| ValueRef::Integer(value.into())),
            Self::Int8(value) => value.map(ValueRef::Integer),
            Self::Text(value) => value.as_deref().map(|text| ValueRef::Text(text.as_bytes())),
        };
        Ok(ToSqlOutput::Borrowed(value.unwrap_or(ValueRef::Null)))
    }
}

macro_rules! from {
    ($($from:ty => |$value:ident| $kind:ident($to:expr)),* $(,)?) => {$(
        impl<'a> From<$from> for Value<'a> {
            fn from($value: $from) -> Self {
                Self::$kind(Some($to))
            }
        }

        impl<'a> From<Option<$from>> for Value<'a> {
            fn from(value: Option<$from>) -> Self {
                Self::$kind(value.map(|$value| $to))
            }
        }
    )*};
}

from! {
    bool => |value| Bool(value),
    i16 => |value| Int2(value),
    i32 => |value| Int4(value),
    i64 => |value| Int8(value),
    SystemTime => |value| Int8(since_1970_ms(value)),
    InstanceId => |value| Int8(value.get()),
    &'a str => |value| Text(Cow::Borrowed(value)),
    String => |value| Text(Cow::Owned(value)),
    StateKind => |value| Text(Cow::Borrowed(value.name())),
    &'a [u8] => |value| Bytes(bytes(value)),
    Vec<u8> => |value| Bytes(Cow::Owned(value)),
    &'a Bytes => |value| Bytes(bytes(value)),
    &'a RecordId => |value| Bytes(bytes(value.as_bytes())),
    &'a Token => |value| Bytes(bytes(value.as_bytes())),
    &'a Scope => |value| Bytes(bytes(value.as_bytes())),
    &'a SpaceHash => |value| Bytes(bytes(value.as_bytes())),
    &'a Key => |value| Bytes(bytes(value.as_bytes())),
    &'a Fingerprint => |value| Bytes(bytes(value.as_bytes())),
    &'a KeyHolder => |value| Bytes(bytes(value.as_bytes())),
    &'a LookupHashes => |value| Bytes(bytes(value.as_bytes())),
}

fn bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytes)
}
