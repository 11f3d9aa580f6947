//! Numbers of things, as people write them.

/// A number with its noun, as in `1 key` and `2 keys`.
pub fn quantity(count: u64, one: &str, several: &str) -> String {
    let noun = if count == 1 { one } else { several };
    format!("{count} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_the_singular() {
        assert_eq!(
            [0, 1, 2].map(|count| quantity(count, "mismatch", "mismatches")),
            ["0 mismatches", "1 mismatch", "2 mismatches"]
        );
    }
}
