//! The chunked coding (RFC 9112 section 7.1), followed byte by byte to find where it ends; nothing is decoded.
//!
//! hyper decodes it afterwards. This parser is the stricter of the two, so whatever gets past it ends for hyper at the
//! same byte.

use super::text::is_tchar;

/// 60 bits: every size fits a `u64` without a check, and no client has a chunk of an exbibyte.
const SIZE_DIGITS_MAX: u8 = 15;
/// Extensions mean nothing to us and are dropped; what they may cost is bounded (CVE-2023-39326 and its like).
const LINE_EXTENSION_BYTES_MAX: u16 = 256;
const EXTENSION_BYTES_MAX: u16 = 4 * 1024;
/// Trailers are held in memory by hyper: half of what it allows.
const TRAILER_BYTES_MAX: u16 = 8 * 1024;
const TRAILER_LINES_MAX: u8 = 32;

/// Where in a chunked body the client is.
#[derive(Debug)]
pub(super) struct Chunked {
    at: At,
    /// Of the chunk: while its size is read, that; then what is left of its data.
    left: u64,
    line_extension_bytes: u16,
    extension_bytes: u16,
    trailer_bytes: u16,
    trailer_lines: u8,
}

/// What [`Chunked::take`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChunkedStep {
    /// The byte after so many sound ones is wrong.
    Bad(usize),
    /// The body ends after so many bytes.
    Done(usize),
    /// All of it is body, and it goes on.
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Digits of the size, of which so many were seen.
    Size(u8),
    /// Whitespace between the size and the `;` that must follow it.
    Gap,
    Extension,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// The first byte of a trailer line, or of the end.
    LineStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    EndLineFeed,
    End,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self {
            at: At::Size(0),
            left: 0,
            line_extension_bytes: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            trailer_lines: 0,
        }
    }

    /// Goes on with `bytes`, which may hold more than the body.
    pub(super) fn take(&mut self, bytes: &[u8]) -> ChunkedStep {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            if self.at == At::Data {
                let data = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - taken);
                self.left -= data as u64;
                taken += data;
                if self.left == 0 {
                    self.at = At::DataReturn;
                }
                continue;
            }
            let Some(next) = self.next(byte) else { return ChunkedStep::Bad(taken) };
            self.at = next;
            taken += 1;
            if next == At::End {
                return ChunkedStep::Done(taken);
            }
        }
        ChunkedStep::More
    }

    /// Where `byte` leads; nowhere, if it is wrong here.
    fn next(&mut self, byte: u8) -> Option<At> {
        match (self.at, byte) {
            (At::Size(digits), _) if byte.is_ascii_hexdigit() => self.digit(digits, byte),
            (At::Size(1..), b'\r') => Some(At::SizeLineFeed),
            // RFC 9112 section 7.1.1: whitespace may stand before the `;`, never before the line's end.
            (At::Size(1..), b' ' | b'\t') | (At::Gap, b' ' | b'\t') => self.extension(At::Gap),
            (At::Size(1..) | At::Gap, b';') => self.extension(At::Extension),
            (At::Extension, b'\r') => Some(At::SizeLineFeed),
            (At::Extension, b'\t' | b' '..=0x7E | 0x80..) => self.extension(At::Extension),
            (At::SizeLineFeed, b'\n') if self.left == 0 => Some(At::LineStart),
            (At::SizeLineFeed, b'\n') => Some(At::Data),
            (At::DataReturn, b'\r') => Some(At::DataLineFeed),
            (At::DataLineFeed, b'\n') => {
                self.line_extension_bytes = 0;
                Some(At::Size(0))
            }
            (At::LineStart, b'\r') => Some(At::EndLineFeed),
            (At::LineStart, _) if is_tchar(byte) => self.trailer_line(),
            (At::TrailerName, b':') => self.trailer(At::TrailerValue),
            (At::TrailerName, _) if is_tchar(byte) => self.trailer(At::TrailerName),
            (At::TrailerValue, b'\r') => self.trailer(At::TrailerLineFeed),
            (At::TrailerValue, b'\t' | b' '..=0x7E | 0x80..) => self.trailer(At::TrailerValue),
            (At::TrailerLineFeed, b'\n') => self.trailer(At::LineStart),
            (At::EndLineFeed, b'\n') => Some(At::End),
            _ => None,
        }
    }

    fn digit(&mut self, digits: u8, byte: u8) -> Option<At> {
        if digits == SIZE_DIGITS_MAX {
            return None;
        }
        let value = (byte as char).to_digit(16).expect("the caller saw a hexadecimal digit");
        self.left = self.left << 4 | u64::from(value);
        Some(At::Size(digits + 1))
    }

    fn extension(&mut self, next: At) -> Option<At> {
        self.line_extension_bytes += 1;
        self.extension_bytes += 1;
        let fits = self.line_extension_bytes <= LINE_EXTENSION_BYTES_MAX && self.extension_bytes <= EXTENSION_BYTES_MAX;
        fits.then_some(next)
    }

    fn trailer_line(&mut self) -> Option<At> {
        self.trailer_lines += 1;
        if self.trailer_lines > TRAILER_LINES_MAX { None } else { self.trailer(At::TrailerName) }
    }

    fn trailer(&mut self, next: At) -> Option<At> {
        self.trailer_bytes += 1;
        (self.trailer_bytes <= TRAILER_BYTES_MAX).then_some(next)
    }
}

#[cfg(test)]
mod tests;
