//! The rate at which callers may use new keys.
//!
//! Each new key is a row in the store for the route's `ttl`. A caller has a limit of its own. A caller whom the service
//! has not accepted yet may be anybody with invented credentials, so the address that it comes from has the same limit,
//! and a new key counts for both.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache as Table;

use super::boot_time::BootInstant;
use oncegate_domain::key_rate::KeyRate;
use oncegate_domain::scope::Scope;

/// The callers and addresses that are remembered, about 100 bytes each. One that is forgotten has its whole burst
/// again: to be forgotten, it takes as many others.
const PARTIES_MAX: usize = 65_536;

/// The use of new keys by callers and addresses.
pub struct NewKeyLimits {
    buckets: Table<LimitedParty, Arc<TokenBucket>>,
    /// The callers whom a service has accepted.
    accepted: Table<Scope, ()>,
}

/// Something that has a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LimitedParty {
    Caller(Arc<str>, Scope),
    Address(Arc<str>, IpAddr),
}

/// The time at which all new keys so far would have been used at the even rate, in microseconds of boot time (the
/// generic cell rate algorithm: a token bucket in one number).
#[derive(Debug, Default)]
struct TokenBucket(AtomicU64);

/// A new key that is allowed. It counts until it is [taken back](Self::give_back).
#[derive(Debug)]
pub struct NewKeyAllowance {
    rate: KeyRate,
    buckets: [Option<Arc<TokenBucket>>; 2],
}

impl Default for NewKeyLimits {
    fn default() -> Self {
        Self { buckets: Table::new(PARTIES_MAX), accepted: Table::new(PARTIES_MAX) }
    }
}

impl NewKeyLimits {
    /// Counts a new key of a caller on a route. `address` is the caller's, where it is known.
    ///
    /// # Errors
    /// The time after which the key would be allowed; nothing counts then.
    // See docs/decisions/0020-limit-new-keys.md.
    pub fn try_use(
        &self,
        route: &Arc<str>,
        rate: KeyRate,
        scope: &Scope,
        address: Option<IpAddr>,
    ) -> Result<NewKeyAllowance, Duration> {
        let address = address.filter(|_| !self.is_accepted(scope));
        let parties = [
            Some(LimitedParty::Caller(Arc::clone(route), *scope)),
            address.map(|address| LimitedParty::Address(Arc::clone(route), address)),
        ];
        let mut allowance = NewKeyAllowance { rate, buckets: [None, None] };
        let now = BootInstant::now().millis();
        for (party, taken) in parties.into_iter().flatten().zip(0..) {
            let Ok(bucket) = self.buckets.get_or_insert_with(&party, || Ok::<_, Infallible>(Arc::default()));
            if let Err(wait_ms) = bucket.try_take(rate, now) {
                allowance.give_back();
                return Err(Duration::from_millis(wait_ms));
            }
            allowance.buckets[taken] = Some(bucket);
        }
        Ok(allowance)
    }

    /// Whether a service has accepted this caller.
    pub fn is_accepted(&self, scope: &Scope) -> bool {
        self.accepted.get(scope).is_some()
    }

    /// Notes that a service has accepted this caller.
    pub fn note_accepted(&self, scope: &Scope) {
        self.accepted.insert(*scope, ());
    }
}

impl TokenBucket {
    /// Takes a token, or returns the milliseconds until there is one. `now_ms` is the boot time.
    fn try_take(&self, rate: KeyRate, now_ms: u64) -> Result<(), u64> {
        let (now, interval, burst) = (now_ms * 1_000, rate.interval_us(), rate.burst_us());
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |even| {
            let even = even.max(now) + interval;
            (even - now <= burst).then_some(even)
        });
        taken.map(drop).map_err(|even| (even.max(now) + interval - now).saturating_sub(burst).div_ceil(1_000))
    }
}

impl NewKeyAllowance {
    /// Takes the key back: it was not new.
    pub fn give_back(self) {
        let interval = self.rate.interval_us();
        for bucket in self.buckets.into_iter().flatten() {
            bucket.0.fetch_sub(interval, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn scope(number: u8) -> Scope {
        Scope::from_stored(&[number; 32]).unwrap()
    }

    fn rate() -> KeyRate {
        // Slow enough for a test on a busy machine.
        KeyRate::new(1, 3)
    }

    #[test]
    fn a_burst_is_allowed_and_the_next_key_has_to_wait() {
        let (limits, route) = (NewKeyLimits::default(), Arc::from("pay"));
        let use_key = |scope: &Scope| limits.try_use(&route, rate(), scope, None);
        for _ in 0..3 {
            assert!(use_key(&scope(1)).is_ok());
        }
        let wait = use_key(&scope(1)).unwrap_err();
        assert!(wait <= Duration::from_secs(1) && wait > Duration::from_millis(500), "{wait:?}");
        assert!(use_key(&scope(2)).is_ok(), "another caller");
    }

    #[test]
    fn a_key_that_was_not_new_does_not_count() {
        let (limits, route) = (NewKeyLimits::default(), Arc::from("pay"));
        for _ in 0..10 {
            limits.try_use(&route, rate(), &scope(1), Some(ADDRESS)).unwrap().give_back();
        }
    }

    #[test]
    fn callers_with_invented_credentials_share_the_limit_of_their_address() {
        let (limits, route) = (NewKeyLimits::default(), Arc::from("pay"));
        let use_key = |number| limits.try_use(&route, rate(), &scope(number), Some(ADDRESS));
        assert!((0..3).all(|number| use_key(number).is_ok()));
        assert!(use_key(3).is_err());
        limits.note_accepted(&scope(3));
        assert!(use_key(3).is_ok(), "the service knows this caller");
        assert!(use_key(4).is_err());
        assert!(limits.try_use(&Arc::from("other"), rate(), &scope(4), Some(ADDRESS)).is_ok(), "another route");
    }

    #[test]
    fn a_token_comes_back_at_the_even_rate() {
        let (bucket, rate) = (TokenBucket::default(), KeyRate::new(10, 2));
        let tries = [1_000, 1_000, 1_000, 1_099, 1_100, 1_100, 1_200, 5_000, 5_000, 5_000];
        let taken = tries.map(|now| bucket.try_take(rate, now).is_ok());
        assert_eq!(taken, [true, true, false, false, true, false, true, true, true, false]);
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_kept_to() {
        for per_second in [300, 501, 700, 999] {
            let (bucket, rate) = (TokenBucket::default(), KeyRate::new(per_second, 100));
            let tries = (0..20_000).filter(|half_ms| bucket.try_take(rate, 1_000 + half_ms / 2).is_ok());
            let taken = tries.count() as u32;
            assert!(
                (100 + per_second * 10).abs_diff(taken) <= per_second / 50,
                "{per_second} a second: {taken} in 10 s"
            );
        }
    }
}
