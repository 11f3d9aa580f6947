//! Follows a body in chunked coding (RFC 9112 section 7.1) byte by byte to find its end. It decodes nothing.
//!
//! hyper decodes the body afterwards. This parser is the stricter of the two, so a body that passes it ends for hyper
//! at the same byte.

use super::text::is_tchar;

/// The hexadecimal digits of a chunk's size: 15 are 60 bits, so that every size fits a `u64` without a check. No client
/// sends a chunk of an exbibyte.
const SIZE_DIGITS_MAX: u8 = 15;
/// The bytes of chunk extensions, in one line and in a whole body. They mean nothing to us and are dropped; the limits
/// bound what reading them costs (CVE-2023-39326 and its like).
const LINE_EXTENSION_BYTES_MAX: u16 = 256;
const EXTENSION_BYTES_MAX: u16 = 4 * 1024;
/// The bytes and lines of the trailers. hyper holds them in memory; these are half of its own limits.
const TRAILER_BYTES_MAX: u16 = 8 * 1024;
const TRAILER_LINES_MAX: u8 = 32;

/// The parser's position in a chunked body, and what it has counted.
#[derive(Debug)]
pub(super) struct ChunkedParser {
    at: ChunkPosition,
    /// The current chunk's size while that is read; then the bytes that are left of its data.
    left: u64,
    line_extension_bytes: u16,
    extension_bytes: u16,
    trailer_bytes: u16,
    trailer_lines: u8,
}

/// The result of [`ChunkedParser::advance`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChunkedStep {
    /// The byte after this many valid ones is wrong.
    Bad(usize),
    /// The body ends after this many bytes.
    Done(usize),
    /// All bytes belong to the body, and it goes on.
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPosition {
    /// In the size, after this many digits.
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

impl ChunkedParser {
    pub(super) fn new() -> Self {
        Self {
            at: ChunkPosition::Size(0),
            left: 0,
            line_extension_bytes: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            trailer_lines: 0,
        }
    }

    /// Continues with `bytes`, which may hold more than the body.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> ChunkedStep {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            if self.at == ChunkPosition::Data {
                let data = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - taken);
                self.left -= data as u64;
                taken += data;
                if self.left == 0 {
                    self.at = ChunkPosition::DataReturn;
                }
                continue;
            }
            let Some(next) = self.next_position(byte) else { return ChunkedStep::Bad(taken) };
            self.at = next;
            taken += 1;
            if next == ChunkPosition::End {
                return ChunkedStep::Done(taken);
            }
        }
        ChunkedStep::More
    }

    /// Returns the position after `byte`; `None` if the byte is wrong here.
    fn next_position(&mut self, byte: u8) -> Option<ChunkPosition> {
        match (self.at, byte) {
            (ChunkPosition::Size(digits), _) if byte.is_ascii_hexdigit() => self.add_digit(digits, byte),
            (ChunkPosition::Size(1..), b'\r') => Some(ChunkPosition::SizeLineFeed),
            // RFC 9112 section 7.1.1: whitespace is allowed before the `;`, never before the line's end.
            (ChunkPosition::Size(1..), b' ' | b'\t') | (ChunkPosition::Gap, b' ' | b'\t') => {
                self.count_extension_byte(ChunkPosition::Gap)
            }
            (ChunkPosition::Size(1..) | ChunkPosition::Gap, b';') => {
                self.count_extension_byte(ChunkPosition::Extension)
            }
            (ChunkPosition::Extension, b'\r') => Some(ChunkPosition::SizeLineFeed),
            (ChunkPosition::Extension, b'\t' | b' '..=0x7E | 0x80..) => {
                self.count_extension_byte(ChunkPosition::Extension)
            }
            (ChunkPosition::SizeLineFeed, b'\n') if self.left == 0 => Some(ChunkPosition::LineStart),
            (ChunkPosition::SizeLineFeed, b'\n') => Some(ChunkPosition::Data),
            (ChunkPosition::DataReturn, b'\r') => Some(ChunkPosition::DataLineFeed),
            (ChunkPosition::DataLineFeed, b'\n') => {
                self.line_extension_bytes = 0;
                Some(ChunkPosition::Size(0))
            }
            (ChunkPosition::LineStart, b'\r') => Some(ChunkPosition::EndLineFeed),
            (ChunkPosition::LineStart, _) if is_tchar(byte) => self.begin_trailer_line(),
            (ChunkPosition::TrailerName, b':') => self.count_trailer_byte(ChunkPosition::TrailerValue),
            (ChunkPosition::TrailerName, _) if is_tchar(byte) => self.count_trailer_byte(ChunkPosition::TrailerName),
            (ChunkPosition::TrailerValue, b'\r') => self.count_trailer_byte(ChunkPosition::TrailerLineFeed),
            (ChunkPosition::TrailerValue, b'\t' | b' '..=0x7E | 0x80..) => {
                self.count_trailer_byte(ChunkPosition::TrailerValue)
            }
            (ChunkPosition::TrailerLineFeed, b'\n') => self.count_trailer_byte(ChunkPosition::LineStart),
            (ChunkPosition::EndLineFeed, b'\n') => Some(ChunkPosition::End),
            _ => None,
        }
    }

    fn add_digit(&mut self, digits: u8, byte: u8) -> Option<ChunkPosition> {
        if digits == SIZE_DIGITS_MAX {
            return None;
        }
        let value = (byte as char).to_digit(16).expect("the caller saw a hexadecimal digit");
        self.left = self.left << 4 | u64::from(value);
        Some(ChunkPosition::Size(digits + 1))
    }

    fn count_extension_byte(&mut self, next: ChunkPosition) -> Option<ChunkPosition> {
        self.line_extension_bytes += 1;
        self.extension_bytes += 1;
        let fits = self.line_extension_bytes <= LINE_EXTENSION_BYTES_MAX && self.extension_bytes <= EXTENSION_BYTES_MAX;
        fits.then_some(next)
    }

    fn begin_trailer_line(&mut self) -> Option<ChunkPosition> {
        self.trailer_lines += 1;
        if self.trailer_lines > TRAILER_LINES_MAX { None } else { self.count_trailer_byte(ChunkPosition::TrailerName) }
    }

    fn count_trailer_byte(&mut self, next: ChunkPosition) -> Option<ChunkPosition> {
        self.trailer_bytes += 1;
        (self.trailer_bytes <= TRAILER_BYTES_MAX).then_some(next)
    }
}

#[cfg(test)]
mod tests;
