//! The deterministic encoding of CBOR (RFC 8949, section 4.2.1).

/// The greatest depth of nested arrays, maps and tags, as for JSON.
const DEPTH_MAX: usize = 128;

// The major types (RFC 8949, section 3.1).
pub(super) const UNSIGNED: u8 = 0;
pub(super) const NEGATIVE: u8 = 1;
pub(super) const BYTES: u8 = 2;
pub(super) const TEXT: u8 = 3;
pub(super) const ARRAY: u8 = 4;
pub(super) const MAP: u8 = 5;
const TAG: u8 = 6;
const SIMPLE: u8 = 7;

const BREAK: u8 = 0xff;

/// The tag of CBOR itself (RFC 8949, section 3.4.6): `55799(…)` is what is in it.
const SELF_DESCRIBED: &[u8] = b"\xd9\xd9\xf7";

/// Returns the deterministic encoding of a body, which is not longer. `None` if it is not one well-formed item, is
/// nested too deep, has a text that is not UTF-8, or a key twice in one map. Time is linear, except that an item of
/// indefinite length and a map out of order are moved once for each such item around them.
pub(super) fn to_deterministic(body: &[u8]) -> Option<Vec<u8>> {
    let input = body.strip_prefix(SELF_DESCRIBED).unwrap_or(body);
    let mut encoder = DeterministicEncoder { input, output: Vec::with_capacity(input.len()) };
    encoder.item(0)?;
    encoder.input.is_empty().then_some(encoder.output)
}

struct DeterministicEncoder<'a> {
    /// The input that is not read yet.
    input: &'a [u8],
    output: Vec<u8>,
}

/// The first bytes of an item.
struct CborHead {
    major: u8,
    /// The low bits of the first byte. 31 stands for an indefinite length.
    information: u8,
    argument: u64,
}

const INDEFINITE: u8 = 31;

/// The most bytes of a head.
const HEAD_MAX: usize = 9;

/// Where a member of a map is in the output.
struct CborMember {
    start: u32,
    key_end: u32,
    end: u32,
}

impl CborHead {
    /// Returns what follows, too.
    fn read(input: &[u8]) -> Option<(Self, &[u8])> {
        let (first, rest) = input.split_first()?;
        let (major, information) = (first >> 5, first & 0x1f);
        let length = match information {
            0..24 | INDEFINITE => 0,
            24..28 => 1 << (information - 24),
            _ => return None,
        };
        let (bytes, rest) = rest.split_at_checked(length)?;
        let argument = bytes.iter().fold(0, |argument, byte| argument << 8 | u64::from(*byte));
        Some((Self { major, information, argument: if length == 0 { information.into() } else { argument } }, rest))
    }
}

impl DeterministicEncoder<'_> {
    fn item(&mut self, depth: usize) -> Option<()> {
        let head = self.head()?;
        let is_indefinite = head.information == INDEFINITE;
        match head.major {
            UNSIGNED | NEGATIVE if !is_indefinite => write_head(&mut self.output, head.major, head.argument),
            BYTES | TEXT => self.string(&head)?,
            ARRAY | MAP if depth < DEPTH_MAX => self.children(&head, depth + 1)?,
            TAG if depth < DEPTH_MAX && !is_indefinite => {
                write_head(&mut self.output, TAG, head.argument);
                self.item(depth + 1)?;
            }
            SIMPLE => write_simple(&mut self.output, &head)?,
            _ => return None,
        }
        Some(())
    }

    fn head(&mut self) -> Option<CborHead> {
        let (head, rest) = CborHead::read(self.input)?;
        self.input = rest;
        Some(head)
    }

    /// Takes a `break` if it comes next.
    fn take_break(&mut self) -> bool {
        let rest = self.input.strip_prefix(&[BREAK]);
        self.input = rest.unwrap_or(self.input);
        rest.is_some()
    }

    fn string(&mut self, head: &CborHead) -> Option<()> {
        let start = self.output.len();
        if head.information == INDEFINITE {
            while !self.take_break() {
                let chunk = self.head().filter(|chunk| chunk.major == head.major && chunk.information != INDEFINITE)?;
                self.chunk(&chunk)?;
            }
            let length = (self.output.len() - start) as u64;
            return self.insert_head(start, head.major, length);
        }
        write_head(&mut self.output, head.major, head.argument);
        self.chunk(head)
    }

    /// Each chunk of a text is UTF-8 for itself (RFC 8949, section 3.2.3).
    fn chunk(&mut self, head: &CborHead) -> Option<()> {
        let (bytes, rest) = self.input.split_at_checked(head.argument.try_into().ok()?)?;
        if head.major == TEXT && std::str::from_utf8(bytes).is_err() {
            return None;
        }
        self.output.extend_from_slice(bytes);
        self.input = rest;
        Some(())
    }

    fn children(&mut self, head: &CborHead, depth: usize) -> Option<()> {
        let (start, is_indefinite) = (self.output.len(), head.information == INDEFINITE);
        if !is_indefinite {
            write_head(&mut self.output, head.major, head.argument);
        }
        let content = self.output.len();
        let (mut count, mut members) = (0, Vec::new());
        while if is_indefinite { !self.take_break() } else { count < head.argument } {
            let start = self.offset()?;
            self.item(depth)?;
            if head.major == MAP {
                let key_end = self.offset()?;
                self.item(depth)?;
                members.push(CborMember { start, key_end, end: self.offset()? });
            }
            count += 1;
        }
        let key = |member: &CborMember| &self.output[member.start as usize..member.key_end as usize];
        if members.is_sorted_by(|left, right| key(left) < key(right)) {
            return if is_indefinite { self.insert_head(start, head.major, count) } else { Some(()) };
        }
        members.sort_unstable_by(|left, right| key(left).cmp(key(right)));
        if members.windows(2).any(|pair| key(&pair[0]) == key(&pair[1])) {
            return None;
        }
        let mut sorted = Vec::with_capacity(self.output.len() - content + HEAD_MAX);
        write_head(&mut sorted, head.major, count);
        for member in &members {
            sorted.extend_from_slice(&self.output[member.start as usize..member.end as usize]);
        }
        self.output.truncate(start);
        self.output.extend_from_slice(&sorted);
        Some(())
    }

    /// The end of the output. A body is shorter than 4 GiB: a map may have a member for each two bytes of it, and a
    /// [`CborMember`] is in memory for each.
    fn offset(&self) -> Option<u32> {
        self.output.len().try_into().ok()
    }

    fn insert_head(&mut self, start: usize, major: u8, argument: u64) -> Option<()> {
        let mut head = Vec::with_capacity(HEAD_MAX);
        write_head(&mut head, major, argument);
        self.output.splice(start..start, head);
        Some(())
    }
}

/// Appends the first bytes of an item, its argument in the fewest bytes.
pub(super) fn write_head(output: &mut Vec<u8>, major: u8, argument: u64) {
    let bytes = argument.to_be_bytes();
    let (information, length) = match argument {
        0..24 => (bytes[7], 0),
        24..0x100 => (24, 1),
        0x100..0x1_0000 => (25, 2),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 8),
    };
    output.push(major << 5 | information);
    output.extend_from_slice(&bytes[8 - length..]);
}

/// Appends a simple value, or a float in the shortest form that has its bits (RFC 8949, section 4.2.2, the payload of a
/// NaN among them).
fn write_simple(output: &mut Vec<u8>, head: &CborHead) -> Option<()> {
    let bits = match head.information {
        0..24 => {
            output.push(SIMPLE << 5 | head.information);
            return Some(());
        }
        // Below 32, the value has a form of one byte alone (RFC 8949, section 3.3).
        24 if head.argument >= 32 => {
            output.extend_from_slice(&[SIMPLE << 5 | 24, head.argument.to_be_bytes()[7]]);
            return Some(());
        }
        25 => widen_half(head.argument),
        26 => widen_single(u32::try_from(head.argument).ok()?),
        27 => head.argument,
        _ => return None,
    };
    if let Some(half) = narrow_to_half(bits) {
        output.push(SIMPLE << 5 | 25);
        output.extend_from_slice(&half.to_be_bytes());
    } else if let Some(single) = narrow_to_single(bits) {
        output.push(SIMPLE << 5 | 26);
        output.extend_from_slice(&single.to_be_bytes());
    } else {
        output.push(SIMPLE << 5 | 27);
        output.extend_from_slice(&bits.to_be_bytes());
    }
    Some(())
}

// The bits of a double: a sign, 11 of the exponent and 52 of the fraction. A NaN is not converted as a number, for a
// processor may set bits of it.
const EXPONENT: u64 = 0x7ff << 52;
const FRACTION: u64 = (1 << 52) - 1;

fn is_nan(bits: u64) -> bool {
    bits & EXPONENT == EXPONENT && bits & FRACTION != 0
}

fn widen_half(half: u64) -> u64 {
    let (sign, exponent, fraction) = (half >> 15 << 63, half >> 10 & 0x1f, half & 0x3ff);
    let magnitude = match exponent {
        // The fraction is in units of 2^-24.
        0 => (f64::from(fraction as u16) / 16_777_216.0).to_bits(),
        31 => EXPONENT | fraction << 42,
        _ => (exponent + 1008) << 52 | fraction << 42,
    };
    sign | magnitude
}

fn widen_single(single: u32) -> u64 {
    let value = f32::from_bits(single);
    if value.is_nan() {
        return u64::from(single >> 31) << 63 | EXPONENT | u64::from(single & 0x7f_ffff) << 29;
    }
    f64::from(value).to_bits()
}

fn narrow_to_single(bits: u64) -> Option<u32> {
    let value = f64::from_bits(bits);
    let single = match is_nan(bits) {
        true => (bits >> 63 << 31 | 0xff << 23 | (bits & FRACTION) >> 29) as u32,
        false => (value as f32).to_bits(),
    };
    (widen_single(single) == bits).then_some(single)
}

fn narrow_to_half(bits: u64) -> Option<u16> {
    let (exponent, fraction) = ((bits & EXPONENT) >> 52, (bits & FRACTION) >> 42);
    let magnitude = match exponent {
        0x7ff => 0x1f << 10 | fraction,
        // From 2^-14 to 65504.
        1009..=1038 => (exponent - 1008) << 10 | fraction,
        // Below, in units of 2^-24.
        _ => (f64::from_bits(bits & !(1 << 63)) * 16_777_216.0).min(1023.0) as u64,
    };
    let half = bits >> 63 << 15 | magnitude;
    (widen_half(half) == bits).then_some(half as u16)
}

/// Reads the beginning of an item: its major type, its argument, and the bytes of a string or all that follows. `None`
/// at the end.
pub(super) fn read_head(item: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (head, rest) = CborHead::read(item)?;
    let content = match head.major {
        BYTES | TEXT => rest.get(..head.argument.try_into().ok()?)?,
        _ => rest,
    };
    Some((head.major, head.argument, content))
}

/// The items in a sequence of them in deterministic encoding.
pub(super) struct CborItems<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for CborItems<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (start, mut rest, mut pending) = (self.0, self.0, 1_u64);
        while pending > 0 {
            let (head, after) = CborHead::read(rest)?;
            let (length, children) = match head.major {
                BYTES | TEXT => (head.argument, 0),
                ARRAY => (0, head.argument),
                MAP => (0, head.argument * 2),
                TAG => (0, 1),
                _ => (0, 0),
            };
            rest = after.get(length.try_into().ok()?..)?;
            pending = pending - 1 + children;
        }
        self.0 = rest;
        Some(&start[..start.len() - rest.len()])
    }
}
