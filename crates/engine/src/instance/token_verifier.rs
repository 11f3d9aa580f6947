//! Verifies callers' tokens with the keys of their issuer, for all workers.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache as Table;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use oncegate_settings::{IssuerKeys, JwtConfig};
use oncegate_trust::jwt::{self, KeySet, TokenFault, VerifiedToken};

/// The verified tokens that are remembered, so that a retry costs no second verification.
const TOKENS_MAX: usize = 4_096;

/// The longest token that is remembered: together they have 32 MiB of claims at most, and mostly some hundred
/// kilobytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The pause between two reads of the keys that tokens with an unknown `kid` cause. Anybody can make such a token.
const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(30);

/// The longest wait of a request for such a read: its time limit, and a little for its end.
const READ_WAIT_MAX: Duration = Duration::from_secs(6);

/// The verifier of one issuer's tokens under one configuration.
pub struct TokenVerifier {
    config: Arc<JwtConfig>,
    /// `None` until the keys have been read for the first time.
    keys: RwLock<Option<Arc<KeysInUse>>>,
    /// The number of reads that have ended.
    reads: watch::Sender<u64>,
    last_request: Mutex<Option<ReadRequest>>,
    read_requested: Notify,
}

/// The keys, and the tokens that were verified with them: other keys begin with no token.
struct KeysInUse {
    text: Box<[u8]>,
    set: KeySet,
    /// By the SHA-256 of the token.
    verified: Table<[u8; 32], Arc<VerifiedToken>>,
}

/// A read of the keys that a token has caused.
#[derive(Clone, Copy)]
struct ReadRequest {
    requested_at: Instant,
    /// The number of reads that had ended then.
    reads: u64,
}

/// The reason why a token identifies nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The token is refused.
    Refused(TokenFault),
    /// The issuer's keys have not been read yet.
    NoKeys,
}

impl From<TokenFault> for TokenError {
    fn from(fault: TokenFault) -> Self {
        Self::Refused(fault)
    }
}

impl KeysInUse {
    fn new(text: &[u8], config: &JwtConfig) -> Result<Arc<Self>, String> {
        let set = KeySet::parse(text, &config.rules.algorithms)?;
        Ok(Arc::new(Self { text: text.into(), set, verified: Table::new(TOKENS_MAX) }))
    }

    fn verify(&self, token: &str, config: &JwtConfig) -> Result<Arc<VerifiedToken>, TokenFault> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.verified.get(&hash) {
            return if known.is_current(SystemTime::now()) { Ok(known) } else { Err(TokenFault::Expired) };
        }
        let verified = Arc::new(jwt::verify(token, &self.set, &config.rules)?);
        if token.len() <= TOKEN_BYTES_MAX {
            self.verified.insert(hash, Arc::clone(&verified));
        }
        Ok(verified)
    }
}

impl TokenVerifier {
    /// A verifier with the keys of the configured file, or without keys yet.
    pub fn new(config: Arc<JwtConfig>) -> Arc<Self> {
        let keys = match &config.keys {
            // The configuration was refused if the file has no usable key.
            IssuerKeys::File { text, .. } => KeysInUse::new(text.as_bytes(), &config).ok(),
            IssuerKeys::Described { .. } | IssuerKeys::Url { .. } => None,
        };
        Self::with_keys(config, keys)
    }

    fn with_keys(config: Arc<JwtConfig>, keys: Option<Arc<KeysInUse>>) -> Arc<Self> {
        let (reads, _) = watch::channel(0);
        Arc::new(Self {
            config,
            keys: RwLock::new(keys),
            reads,
            last_request: Mutex::default(),
            read_requested: Notify::new(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &JwtConfig {
        &self.config
    }

    /// Verifies a token. If it names a key that is not known, the keys are read again first; all such requests wait for
    /// the same read.
    ///
    /// # Errors
    /// The token is refused, or cannot be verified yet.
    pub async fn verify(&self, token: &str) -> Result<Arc<VerifiedToken>, TokenError> {
        // Before the keys are looked at: a read that ends after that is not missed.
        let mut reads = self.reads.subscribe();
        match self.keys()?.verify(token, &self.config) {
            Err(TokenFault::UnknownKey) => {}
            verified => return Ok(verified?),
        }
        if self.request_read() {
            let _ = timeout(READ_WAIT_MAX, reads.changed()).await;
        }
        // Whatever came of the read, the newest keys decide. And if none is requested now, one may have ended since the
        // look above.
        Ok(self.keys()?.verify(token, &self.config)?)
    }

    fn keys(&self) -> Result<Arc<KeysInUse>, TokenError> {
        self.keys.read().clone().ok_or(TokenError::NoKeys)
    }

    /// Requests a read of the keys, unless one was requested lately. Returns whether a requested read is to be waited
    /// for.
    fn request_read(&self) -> bool {
        let mut last = self.last_request.lock();
        let reads = *self.reads.borrow();
        match *last {
            Some(request) if request.reads == reads => true,
            Some(request) if request.requested_at.elapsed() < UNKNOWN_KEY_PAUSE => false,
            Some(_) | None => {
                *last = Some(ReadRequest { requested_at: Instant::now(), reads });
                self.read_requested.notify_one();
                true
            }
        }
    }

    /// Waits until a token names an unknown key.
    pub async fn read_requested(&self) {
        self.read_requested.notified().await;
    }

    /// Whether there are keys.
    pub fn has_keys(&self) -> bool {
        self.keys().is_ok()
    }

    /// Notes the end of a read. Keys that are new replace the earlier ones, and the tokens that these had verified; a
    /// text without usable keys replaces nothing.
    ///
    /// # Errors
    /// The problem of the read, or of its text.
    pub fn note_read(&self, text: Result<impl AsRef<[u8]>, String>) -> Result<(), String> {
        // Keys never expire by themselves: an issuer that is away must not stop the service.
        let result = text.and_then(|text| self.replace_keys(text.as_ref()));
        self.reads.send_modify(|reads| *reads += 1);
        result
    }

    fn replace_keys(&self, text: &[u8]) -> Result<(), String> {
        if self.keys().is_ok_and(|keys| *keys.text == *text) {
            return Ok(());
        }
        let keys = KeysInUse::new(text, &self.config)?;
        *self.keys.write() = Some(keys);
        Ok(())
    }
}

/// The verifiers in use: one for each configuration, shared by all workers.
#[derive(Default)]
pub struct TokenVerifiers(Mutex<Vec<Weak<TokenVerifier>>>);

impl TokenVerifiers {
    /// The verifier under a configuration. A new one takes the keys over from another one that reads the same URL.
    pub fn for_config(&self, config: &Arc<JwtConfig>) -> Arc<TokenVerifier> {
        let mut known = self.0.lock();
        known.retain(|verifier| verifier.strong_count() > 0);
        let living: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        if let Some(same) = living.iter().find(|verifier| verifier.config == *config) {
            return Arc::clone(same);
        }
        let reads_same = |verifier: &&Arc<TokenVerifier>| {
            let other = &verifier.config;
            other.keys == config.keys && other.rules.algorithms == config.rules.algorithms
        };
        let earlier = living.iter().rev().filter(reads_same).find_map(|verifier| verifier.keys().ok());
        // Its own table of verified tokens: the rules differ.
        let keys = earlier.and_then(|keys| KeysInUse::new(&keys.text, config).ok());
        let new = match keys {
            Some(keys) => TokenVerifier::with_keys(Arc::clone(config), Some(keys)),
            None => TokenVerifier::new(Arc::clone(config)),
        };
        known.push(Arc::downgrade(&new));
        new
    }
}
