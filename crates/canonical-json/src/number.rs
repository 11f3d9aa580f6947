//! JSON numbers as exact decimals.
//!
//! A literal is reduced to its sign, significant digits and power of ten, and these are written in the layout of
//! ECMA-262 `Number::toString`. No double is ever made. Three properties follow:
//!
//! - If the digits are the shortest ones of the literal's double, the result is that of RFC 8785: the same layout of
//!   the same digits. Otherwise all digits are kept.
//! - Different decimals have different results: each result is a JSON number for exactly the decimal that it was made
//!   of.
//! - The canonical form of a result is itself, as it has the same sign, digits and power of ten.

use std::io::Write as _;

use super::CanonicalizeError;

/// The largest power of ten of a number's first digit, up or down.
///
/// It is far beyond any practical number, and far enough from the limits of `i64` that adding a text's length cannot
/// overflow. It bounds the value, not its spelling: `1e5` and `0.1e6` are both accepted or both refused, and the
/// canonical form of an accepted number is accepted too.
const EXPONENT_MAX: u64 = 999_999_999_999_999_999;

/// Up to this many digits before the point, ECMA-262 writes no exponent.
const WHOLE_DIGITS_MAX: usize = 21;

/// Up to this many zeros between the point and the first digit, ECMA-262 writes no exponent.
const LEADING_ZEROS_MAX: usize = 5;

/// The parts of a number literal (RFC 8259 section 6), at least one digit in `whole`.
pub(super) struct NumberLiteral<'t> {
    negative: bool,
    whole: &'t [u8],
    fraction: &'t [u8],
    exponent: Option<i64>,
    len: usize,
}

/// Reads the number literal at the start of `text`.
pub(super) fn scan(text: &[u8]) -> Result<NumberLiteral<'_>, CanonicalizeError> {
    let negative = text.first() == Some(&b'-');
    let mut len = usize::from(negative);
    let whole = digits(&text[len..])?;
    if whole.len() > 1 && whole[0] == b'0' {
        return Err(CanonicalizeError::Syntax);
    }
    len += whole.len();
    let mut fraction: &[u8] = &[];
    if text.get(len) == Some(&b'.') {
        fraction = digits(&text[len + 1..])?;
        len += 1 + fraction.len();
    }
    let mut exponent = None;
    if let Some(b'e' | b'E') = text.get(len) {
        len += 1;
        let sign = text.get(len).copied().filter(|byte| matches!(byte, b'+' | b'-'));
        len += usize::from(sign.is_some());
        let power = digits(&text[len..])?;
        len += power.len();
        let power = saturating_integer(power);
        exponent = Some(if sign == Some(b'-') { -power } else { power });
    }
    Ok(NumberLiteral { negative, whole, fraction, exponent, len })
}

impl NumberLiteral<'_> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A quick check that the literal is canonical, as nearly all literals in real bodies are. False means that
    /// [`Self::write_canonical`] must decide.
    pub(super) fn is_plainly_canonical(&self) -> bool {
        if self.exponent.is_some() || self.whole.len() > WHOLE_DIGITS_MAX {
            return false;
        }
        match self.fraction {
            [] => !(self.negative && self.whole == b"0"),
            [.., b'0'] => false,
            fraction => self.whole != b"0" || fraction.iter().take(LEADING_ZEROS_MAX + 1).any(|digit| *digit != b'0'),
        }
    }

    /// Appends the canonical form.
    pub(super) fn write_canonical(&self, output: &mut Vec<u8>) -> Result<(), CanonicalizeError> {
        // The significant digits are `head` and then `tail`; the value is 0.HEADTAIL times ten to the power of `point`.
        let mut head = without_leading_zeros(self.whole);
        let mut tail = without_trailing_zeros(self.fraction);
        let mut point = signed(head.len());
        if head.is_empty() {
            let zeros = tail.len();
            tail = without_leading_zeros(tail);
            point = signed(tail.len()) - signed(zeros);
        }
        if tail.is_empty() {
            head = without_trailing_zeros(head);
        }
        let count = head.len() + tail.len();
        if count == 0 {
            // All zeros are the same: RFC 8785 appendix B writes -0 as 0, and no power of ten changes zero.
            output.push(b'0');
            return Ok(());
        }
        let point = point.saturating_add(self.exponent.unwrap_or(0));
        let exponent = point.saturating_sub(1);
        if exponent.unsigned_abs() > EXPONENT_MAX {
            return Err(CanonicalizeError::ExponentTooLarge);
        }

        let digits = |from: usize, to: usize, output: &mut Vec<u8>| {
            let (head_from, head_to) = (from.min(head.len()), to.min(head.len()));
            output.extend_from_slice(&head[head_from..head_to]);
            output.extend_from_slice(&tail[from - head_from..to - head_to]);
        };
        if self.negative {
            output.push(b'-');
        }
        match usize::try_from(point) {
            Ok(whole @ 1..=WHOLE_DIGITS_MAX) if whole >= count => {
                digits(0, count, output);
                zeros(whole - count, output);
            }
            Ok(whole @ 1..=WHOLE_DIGITS_MAX) => {
                digits(0, whole, output);
                output.push(b'.');
                digits(whole, count, output);
            }
            _ if point <= 0 && point.unsigned_abs() <= LEADING_ZEROS_MAX as u64 => {
                output.extend_from_slice(b"0.");
                zeros(point.unsigned_abs() as usize, output);
                digits(0, count, output);
            }
            _ => {
                digits(0, 1, output);
                if count > 1 {
                    output.push(b'.');
                    digits(1, count, output);
                }
                write!(output, "e{exponent:+}").expect("a Vec takes every byte");
            }
        }
        Ok(())
    }
}

/// Returns the digits at the start of `text`, at least one.
fn digits(text: &[u8]) -> Result<&[u8], CanonicalizeError> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 { Err(CanonicalizeError::Syntax) } else { Ok(&text[..count]) }
}

/// Parses digits. A number that is too large becomes `i64::MAX`, which is beyond [`EXPONENT_MAX`].
fn saturating_integer(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |number: i64, digit| number.saturating_mul(10).saturating_add(i64::from(digit - b'0')))
}

fn without_leading_zeros(digits: &[u8]) -> &[u8] {
    let first = digits.iter().position(|digit| *digit != b'0').unwrap_or(digits.len());
    &digits[first..]
}

fn without_trailing_zeros(digits: &[u8]) -> &[u8] {
    let end = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
    &digits[..end]
}

fn signed(len: usize) -> i64 {
    i64::try_from(len).expect("no slice is longer than isize::MAX")
}

fn zeros(count: usize, output: &mut Vec<u8>) {
    output.resize(output.len() + count, b'0');
}
