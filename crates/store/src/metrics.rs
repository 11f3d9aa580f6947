//! Durations and failures of calls of the store.

use super::calls;
use oncegate_telemetry::metrics::{Counters, Gauge, Histograms, label};

/// Defines [`Op`].
macro_rules! define_ops {
    ($($(#[$about:meta])* $name:ident($($params:ident: $Params:ty)?) -> $Answer:ty:
        $kind:ident $(($op:ident, $label:literal))?;)+) => {
        label!(
            /// A call of the store that is counted. `docs/metrics.md` has the labels.
            Op, "op", { $($(
                #[doc = concat!("[`Store::", stringify!($name), "`](super::Store::", stringify!($name), ")")]
                $op => $label,
            )?)+ }
        );
    };
}

calls!(define_ops);

/// Metrics of calls that were made; a call that the breaker refuses is not counted.
#[derive(Clone, Debug, Default)]
pub struct StoreMetrics {
    /// The calls' durations, failed calls included.
    pub durations: Histograms<Op>,
    /// The failed calls.
    pub errors: Counters<Op>,
    /// The servers of the URL that take writes; 0 where the URL has one host.
    pub primaries: Gauge,
}
