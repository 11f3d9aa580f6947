//! Takes values from an input's bytes, so that every input means something.

/// The bytes of an input that are not taken yet. At its end, it gives zeros and empty texts.
pub struct BytesReader<'a>(&'a [u8]);

impl<'a> BytesReader<'a> {
    /// Starts with the first byte.
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        self.taken(1).first().copied().unwrap_or_default()
    }

    /// Takes eight bytes as a number.
    pub fn number(&mut self) -> i64 {
        let mut bytes = [0; 8];
        let taken = self.taken(8);
        bytes[..taken.len()].copy_from_slice(taken);
        i64::from_le_bytes(bytes)
    }

    /// Takes a text with its length in one byte before it.
    pub fn text(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.taken(length)
    }

    /// Takes what comes before the next line feed, and the line feed.
    pub fn line(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
        let line = self.taken(end);
        self.taken(1);
        line
    }

    /// Takes the rest.
    pub fn rest(&mut self) -> &'a [u8] {
        self.taken(self.0.len())
    }

    fn taken(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
