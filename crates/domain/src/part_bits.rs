//! A few keyed bits for each part of a request, by which a request that is refused is told in which parts it differs.
//!
//! They are so few that they explain and never decide: the fingerprint decides. Of a name and of a value there are 16
//! bits each, so that one part that differs in 65,536 is not named.
//!
//! They are keyed with the service's salt and the record's id, so that equal parts of two records have other bits. A
//! reader of the salt can test guesses of each part alone, where the fingerprint needs one of the whole request.
//! Therefore they are stored only where a `secret` seals the salt. The hash is SipHash-2-4, a keyed one for short
//! texts, because each request pays for it. Each text in it stands behind its length.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use super::differing_parts::{DifferingParts, PartDifference};
use super::ids::RecordId;
use super::request_part::{PARTS_MAX, RequestPart};
use super::scope::Salt;

/// The most parts of a refused request that are compared. The first [`PARTS_MAX`] are mostly among them, and each is
/// compared with all of these.
const COMPARED_MAX: usize = 1024;

/// The version, in the first byte: all parts have bits, or only the first ones.
const ALL: u8 = 1;
const FIRST_ONES: u8 = 2;

const NAME_BYTES: usize = 2;
const VALUE_BYTES: usize = 2;
const BITS_BYTES: usize = NAME_BYTES + VALUE_BYTES;

/// The key of the bits of one record's parts.
#[derive(Clone)]
pub struct PartKey(SipHasher24);

impl PartKey {
    pub fn new(salt: &Salt, id: &RecordId) -> Self {
        let key = salt.as_bytes().first_chunk().expect("a salt is longer than the key of the hash");
        let mut hash = SipHasher24::new_with_key(key);
        hash.write(id.as_bytes());
        Self(hash)
    }

    fn bits(&self, part: &RequestPart<'_>) -> ([u8; NAME_BYTES], [u8; VALUE_BYTES]) {
        let mut hash = self.0;
        add_text(&mut hash, [part.kind.as_bytes(), &part.name]);
        let name = first_bytes(&hash);
        add_text(&mut hash, [&part.value]);
        (name, first_bytes(&hash))
    }
}

/// Adds a text in pieces, behind its length.
fn add_text<const N: usize>(hash: &mut SipHasher24, pieces: [&[u8]; N]) {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    hash.write(&(length as u64).to_be_bytes());
    pieces.iter().for_each(|piece| hash.write(piece));
}

fn first_bytes(hash: &SipHasher24) -> [u8; 2] {
    let [first, second, ..] = hash.finish().to_be_bytes();
    [first, second]
}

/// The bits of the parts of one request, in the order of the parts. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartBits(Arc<[u8]>);

impl PartBits {
    pub fn new<'a>(key: &PartKey, parts: impl IntoIterator<Item = RequestPart<'a>>) -> Self {
        let mut parts = parts.into_iter();
        let mut bytes = [0; 1 + PARTS_MAX * BITS_BYTES];
        let (version, bits) = bytes.split_at_mut(1);
        let count = bits.chunks_exact_mut(BITS_BYTES).zip(parts.by_ref()).fold(0, |count, (bits, part)| {
            let (name, value) = key.bits(&part);
            bits.copy_from_slice(&[name, value].concat());
            count + 1
        });
        version[0] = if count == PARTS_MAX && parts.next().is_some() { FIRST_ONES } else { ALL };
        Self(bytes[..1 + count * BITS_BYTES].into())
    }

    /// Reads stored bits; `None` for those of a version that this one does not know.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        let (version, bits) = bytes.split_first()?;
        let is_known = matches!(*version, ALL | FIRST_ONES);
        let is_whole = bits.len() % BITS_BYTES == 0 && bits.len() <= PARTS_MAX * BITS_BYTES;
        (is_known && is_whole).then(|| Self(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Compares another request with these bits of the first one, both by the same recipe.
    pub fn compare<'a>(
        &self,
        key: &PartKey,
        parts: impl IntoIterator<Item = RequestPart<'a>>,
        holds_key: impl Fn(&RequestPart<'_>) -> bool,
    ) -> DifferingParts {
        let (version, bits) = self.0.split_first().expect("there is a version");
        let bits = bits.chunks_exact(BITS_BYTES).map(|bits| (&bits[..NAME_BYTES], &bits[NAME_BYTES..])).collect();
        compare(bits, *version == ALL, parts, |part| key.bits(part), holds_key)
    }
}

/// Compares the parts of one request with those of the first one, by their values and not by bits.
pub fn compare_parts<'a>(
    first: &'a [RequestPart<'_>],
    second: impl IntoIterator<Item = RequestPart<'a>>,
    holds_key: impl Fn(&RequestPart<'_>) -> bool,
) -> DifferingParts {
    let first = first.iter().map(|part| (part.place(), &*part.value)).collect();
    compare(first, true, second, |part| (part.place(), part.value.to_vec()), holds_key)
}

/// Compares the parts of a request with the names and values of the first one's parts; `has_all`: whether these are all
/// of them.
fn compare<'a, N: PartialEq<M>, V: PartialEq<W>, M, W>(
    first: Vec<(N, V)>,
    has_all: bool,
    second: impl IntoIterator<Item = RequestPart<'a>>,
    read: impl Fn(&RequestPart<'_>) -> (M, W),
    holds_key: impl Fn(&RequestPart<'_>) -> bool,
) -> DifferingParts {
    let mut first: Vec<_> = first.into_iter().map(|(name, value)| (name, value, false)).collect();
    let mut differing = DifferingParts::default();
    let mut parts = second.into_iter();
    // Equal ones first: a place may be there several times.
    let mut others = Vec::new();
    for part in parts.by_ref().take(COMPARED_MAX) {
        let (name, value) = read(&part);
        match first.iter_mut().find(|(own, own_value, is_found)| *own == name && *own_value == value && !*is_found) {
            Some((.., is_found)) => *is_found = true,
            None => others.push((name, part)),
        }
    }
    for (name, part) in others {
        let same_name = first.iter_mut().find(|(own, _, is_found)| *own == name && !*is_found);
        let difference = match &same_name {
            _ if holds_key(&part) => PartDifference::HoldsKey,
            Some(_) => PartDifference::Changed,
            None => PartDifference::Added,
        };
        // A part that has no bits may be one of those that were left out.
        if same_name.is_some() || has_all {
            differing.add(&part, difference);
        }
        same_name.into_iter().for_each(|(.., is_found)| *is_found = true);
    }
    if first.iter().any(|(.., is_found)| !is_found) && parts.next().is_none() {
        differing.add_missing();
    }
    // Of many parts, two may have the same bits of their names.
    if has_all { differing } else { differing.of_possible_retry() }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn key(salt: u8, id: u8) -> PartKey {
        PartKey::new(&Salt::new([salt; 32]), &RecordId::from_stored(&[id; 32]).unwrap())
    }

    /// Parts of a form, each as `name=value`.
    fn parts(texts: &[&str]) -> Vec<RequestPart<'static>> {
        let part = |text: &&str| {
            let (name, value) = text.split_once('=').unwrap();
            let (name, value) = (name.as_bytes().to_vec(), value.as_bytes().to_vec());
            RequestPart { kind: "form:", name: Cow::Owned(name), value: Cow::Owned(value) }
        };
        texts.iter().map(part).collect()
    }

    #[test]
    fn the_parts_that_differ_are_named() {
        let first = PartBits::new(&key(1, 1), parts(&["a=1", "b=2", "l=1", "l=2"]));
        for (second, names) in [
            (&["a=1", "b=2", "l=1", "l=2"][..], &[][..]),
            (&["l=2", "b=2", "a=1", "l=1"], &[]),
            (&["a=3", "b=2", "l=1", "l=2"], &["form:a"]),
            (&["a=1", "b=2", "l=1", "l=3"], &["form:l"]),
            (&["a=1", "b=2", "l=1", "l=2", "l=3"], &["form:l"]),
            (&["a=1", "b=2", "c=2", "l=1", "l=2"], &["form:c"]),
            (&["a=1", "b=2", "l=1"], &["missing"]),
            (&["b=2", "c=1", "l=1", "l=2"], &["form:c", "missing"]),
            (&[], &["missing"]),
        ] {
            let differing = first.compare(&key(1, 1), parts(second), |_| false);
            assert_eq!(differing.names(), names, "{second:?}");
        }
    }

    #[test]
    fn bits_are_of_one_record_under_one_salt() {
        let of = |salt, id| PartBits::new(&key(salt, id), parts(&["a=1", "b=2", "c=3"]));
        assert_eq!(of(1, 1), of(1, 1));
        assert!(of(1, 1) != of(2, 1) && of(1, 1) != of(1, 2));
        // A name and a value cannot be moved into each other.
        let other = PartBits::new(&key(1, 1), parts(&["a=1b", "=2", "c=3"]));
        assert_ne!(of(1, 1), other);
    }

    #[test]
    fn the_first_parts_of_a_large_request_have_bits() {
        let many: Vec<String> = (0..200).map(|number| format!("a{number:03}=1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let bits = PartBits::new(&key(1, 1), parts(&many));
        assert_eq!(bits.as_bytes().len(), 193);
        let compared = |texts: &[&str]| bits.compare(&key(1, 1), parts(texts), |_| false).names().to_vec();
        assert_eq!(compared(&many), [""; 0]);
        let changed = [&["a000=2"], &many[1..199], &["a199=2"]].concat();
        assert_eq!(compared(&changed), ["form:a000"], "of the last one nobody knows");
        let all = PartBits::new(&key(1, 1), parts(&many[..PARTS_MAX]));
        let more = all.compare(&key(1, 1), parts(&many), |_| false);
        assert_eq!((more.names().len(), more.is_another_operation()), (16, false));
        let changed = all.compare(&key(1, 1), parts(&["a000=2"]), |_| false);
        assert_eq!(
            (changed.names(), changed.is_another_operation()),
            (&["form:a000".into(), "missing".into()][..], true)
        );
        assert!(!bits.compare(&key(1, 1), parts(&["a000=2"]), |_| false).is_another_operation());
    }

    #[test]
    fn stored_bits_are_read_back_and_others_are_none() {
        let bits = PartBits::new(&key(1, 1), parts(&["a=1", "b=2"]));
        assert_eq!(bits.as_bytes().len(), 9);
        assert_eq!(PartBits::from_stored(bits.as_bytes()), Some(bits));
        for unknown in [&[][..], &[0], &[3], &[1, 0], &[1, 0, 0, 0, 0, 0], &[1; 1 + 49 * 4]] {
            assert_eq!(PartBits::from_stored(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    #[ignore = "a measurement: cargo test --release -p oncegate-domain part_bits -- --ignored --nocapture"]
    fn the_bits_of_a_request_take_less_than_half_a_microsecond() {
        let parts = parts(&["method=POST", "path=/v1/payments", "amount=1099", "currency=eur", "to=acct_1", "note=x"]);
        let started = std::time::Instant::now();
        for number in 0..100_000_u32 {
            let id = RecordId::from_stored(&[number as u8; 32]).unwrap();
            let key = PartKey::new(&Salt::new([1; 32]), &id);
            std::hint::black_box(PartBits::new(&key, parts.iter().cloned()));
        }
        println!("{:?} for each request of {} parts", started.elapsed() / 100_000, parts.len());
    }
}
