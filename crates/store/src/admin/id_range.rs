//! Ranges of ids, for filters that have the beginning of a hash.

use data_encoding::HEXLOWER_PERMISSIVE;

/// A range of 32-byte hashes, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub low: Vec<u8>,
    pub high: Vec<u8>,
}

impl Default for IdRange {
    fn default() -> Self {
        Self { low: Vec::new(), high: vec![0xff; 32] }
    }
}

impl IdRange {
    /// The range of hashes that begin with these 1 to 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex_prefix(prefix: &str) -> Option<Self> {
        if prefix.is_empty() || prefix.len() > 64 {
            return None;
        }
        let decode = |digits: String| HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
        Some(Self { low: decode(format!("{prefix:0<64}"))?, high: decode(format!("{prefix:f<64}"))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range_of_hashes() {
        let range = IdRange::from_hex_prefix("0a1").unwrap();
        assert_eq!((&range.low[..3], range.low.len()), (&[0x0a, 0x10, 0][..], 32));
        assert_eq!((&range.high[..3], range.high.len()), (&[0x0a, 0x1f, 0xff][..], 32));
        let whole = IdRange::from_hex_prefix(&"ab".repeat(32)).unwrap();
        assert_eq!(whole, IdRange { low: vec![0xab; 32], high: vec![0xab; 32] });
        for wrong in ["", "xyz", &"a".repeat(65), "ä", "+1"] {
            assert_eq!(IdRange::from_hex_prefix(wrong), None, "{wrong}");
        }
    }
}
