//! The promises of the canonical form, on values that proptest generates and on the published vectors.
//!
//! The models here share no code with the crate: a decimal is a row of digits on a fixed grid, a JSON value is a tree,
//! and a text is one of the many spellings of a tree.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use canonical_json::*;
use proptest::prelude::*;
use serde::de::IgnoredAny;

fn canonical(text: &str) -> Result<String, CanonicalizeError> {
    canonicalize(text.as_bytes()).map(|form| String::from_utf8(form.into_owned()).expect("the form is UTF-8"))
}

/// A JSON value. Member names are kept as code units, so that the map's order is that of RFC 8785.
#[derive(Clone, Debug, PartialEq)]
enum JsonTree {
    Array(Vec<JsonTree>),
    Number(Decimal),
    Object(BTreeMap<Vec<u16>, JsonTree>),
    String(String),
    Word(&'static str),
}

/// `digits` times ten to the power of `exponent`, not normalised.
#[derive(Clone, Debug)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i32,
}

impl Decimal {
    /// Returns the sign and the digits from 10^159 down to 10^-160; zero has no sign.
    fn on_grid(&self) -> (bool, Vec<u8>) {
        let mut grid = vec![b'0'; 320];
        for (behind, digit) in self.digits.bytes().rev().enumerate() {
            let power = self.exponent + i32::try_from(behind).expect("few digits");
            grid[usize::try_from(159 - power).expect("on the grid")] = digit;
        }
        let is_zero = grid.iter().all(|digit| *digit == b'0');
        (self.negative && !is_zero, grid)
    }

    /// Writes one of its literals: with or without trailing zeros, the point anywhere, and
    /// the exponent that balances both.
    fn spell(&self, choose: &mut Choices) -> String {
        let mut digits = self.digits.clone();
        let mut exponent = self.exponent;
        for _ in 0..choose.below(4) {
            digits.push('0');
            exponent -= 1;
        }
        let fraction = choose.below(digits.len() + 4);
        while digits.len() <= fraction {
            digits.insert(0, '0');
        }
        exponent += i32::try_from(fraction).expect("few digits");
        let (whole, fraction) = digits.split_at(digits.len() - fraction);
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        let sign = if self.negative { "-" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        let power = match (exponent, choose.below(3)) {
            (0, 0 | 1) => String::new(),
            (_, 0) => format!("e{exponent}"),
            (_, 1) => format!("E{exponent:+}"),
            (_, _) => format!("e{exponent:+04}"),
        };
        format!("{sign}{whole}{point}{fraction}{power}")
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.on_grid() == other.on_grid()
    }
}

/// The free choices of a JSON writer, from a seed (SplitMix64).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("below a usize")
    }
}

/// Writes `value` with spaces, member order, escapes and number literals as `choose` decides.
fn spell(value: &JsonTree, choose: &mut Choices) -> String {
    let spelt = match value {
        JsonTree::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(|element| spell(element, choose)).collect();
            format!("[{}{}]", space(choose), elements.join(","))
        }
        JsonTree::Number(decimal) => decimal.spell(choose),
        JsonTree::Object(members) => {
            let mut spelt = Vec::new();
            for (name, value) in members {
                let name = spell_string(&String::from_utf16(name).expect("names are characters"), choose);
                let at = choose.below(spelt.len() + 1);
                spelt.insert(at, format!("{}{name}{}:{}", space(choose), space(choose), spell(value, choose)));
            }
            format!("{{{}{}}}", space(choose), spelt.join(","))
        }
        JsonTree::String(text) => spell_string(text, choose),
        JsonTree::Word(word) => (*word).to_owned(),
    };
    format!("{}{spelt}{}", space(choose), space(choose))
}

fn space(choose: &mut Choices) -> &'static str {
    ["", "", "", " ", "\n\t", " \r\n  "][choose.below(6)]
}

fn spell_string(text: &str, choose: &mut Choices) -> String {
    let mut spelt = String::from('"');
    for character in text.chars() {
        let short = match character {
            '"' | '\\' | '/' => Some(character),
            '\u{8}' => Some('b'),
            '\u{c}' => Some('f'),
            '\n' => Some('n'),
            '\r' => Some('r'),
            '\t' => Some('t'),
            _ => None,
        };
        let literal = !matches!(character, '"' | '\\' | '\0'..='\u{1f}');
        match (choose.below(3), short) {
            (0, _) if literal => spelt.push(character),
            (0 | 1, Some(short)) => spelt.extend(['\\', short]),
            (1, _) if literal => spelt.push(character),
            (upper, _) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    spelt += &if upper == 2 { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
                }
            }
        }
    }
    spelt + "\""
}

fn decimal() -> impl Strategy<Value = Decimal> {
    let digits =
        prop_oneof![4 => "[0-9]{1,4}", 2 => "[0-9]{14,24}", 1 => "90071992547409[0-9]{2}", 1 => "[0-9]{30,40}"];
    (any::<bool>(), digits, prop_oneof![-3..3, -40..40_i32]).prop_map(|(negative, digits, exponent)| Decimal {
        negative,
        digits,
        exponent,
    })
}

/// Names that collide, that need escapes, and that lie on both sides of the surrogates.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]{0,2}", r#"["\\/\x00-\x1f#\[-^]{1,2}"#, "[\u{d7f0}-\u{e00f}\u{ffee}-\u{1000f}]{1,2}", ".{0,12}"]
}

fn value(number: impl Strategy<Value = Decimal> + 'static) -> impl Strategy<Value = JsonTree> {
    let leaf = prop_oneof![
        prop_oneof![Just("null"), Just("true"), Just("false")].prop_map(JsonTree::Word),
        name().prop_map(JsonTree::String),
        number.prop_map(JsonTree::Number),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let member = (name().prop_map(|name| name.encode_utf16().collect()), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(JsonTree::Array),
            prop::collection::vec(member, 0..6).prop_map(|members| JsonTree::Object(members.into_iter().collect())),
        ]
    })
}

/// Decimals of at most 15 digits and a small power are the shortest form of their double.
fn decimal_of_a_double() -> impl Strategy<Value = Decimal> {
    (any::<bool>(), "[0-9]{1,15}", -40..40_i32).prop_map(|(negative, digits, exponent)| Decimal {
        negative,
        digits,
        exponent,
    })
}

proptest! {
    // No file of failures: each failure prints its smallest input, which then becomes a test of its own.
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_spelling_of_a_value_has_one_form_and_the_form_is_its_own_form(
        value in value(decimal()), seeds in any::<[u64; 2]>(),
    ) {
        let [one, other] = seeds.map(|seed| canonical(&spell(&value, &mut Choices(seed))));
        prop_assert_eq!(&one, &other);
        let form = one.expect("the value is canonicalisable");
        prop_assert_eq!(canonicalize(form.as_bytes()), Ok(Cow::Borrowed(form.as_bytes())));
        prop_assert!(matches!(canonicalize(form.as_bytes()), Ok(Cow::Borrowed(_))), "a canonical text was copied");
    }

    #[test]
    fn the_children_of_a_value_make_it_up_and_no_text_stops_their_reader(
        value in value(decimal()), seed in any::<u64>(), other in any::<Vec<u8>>(), cut in any::<prop::sample::Index>(),
    ) {
        let form = canonical(&spell(&value, &mut Choices(seed))).expect("the value is canonicalisable");
        if let Some(children) = canonical_children(form.as_bytes()) {
            let children: Vec<_> = children
                .map(|(name, value)| name.map_or_else(|| value.to_vec(), |name| [name, value].join(&b':')))
                .collect();
            let (open, close) = if form.starts_with('[') { (b"[", b"]") } else { (b"{", b"}") };
            prop_assert_eq!([&open[..], &children.join(&b','), close].concat(), form.as_bytes());
        } else {
            prop_assert!(!form.starts_with(['{', '[']), "it has children");
        }
        let cut = [&form.as_bytes()[..cut.index(form.len())], &other, b"}"].concat();
        let children = canonical_children(&cut).into_iter().flatten();
        let length: usize = children.map(|(name, value)| name.map_or(0, <[u8]>::len) + value.len()).sum();
        prop_assert!(length <= cut.len());
    }

    #[test]
    fn two_values_have_the_same_form_exactly_if_they_are_equal(
        one in value(decimal()), other in value(decimal()), seeds in any::<[u64; 2]>(),
    ) {
        let forms = (canonical(&spell(&one, &mut Choices(seeds[0]))), canonical(&spell(&other, &mut Choices(seeds[1]))));
        prop_assert_eq!(forms.0.expect("canonicalisable") == forms.1.expect("canonicalisable"), one == other);
    }

    #[test]
    fn the_form_denotes_the_value(value in value(decimal()), seed in any::<u64>()) {
        let form = canonical(&spell(&value, &mut Choices(seed))).expect("the value is canonicalisable");
        prop_assert_eq!(read(&mut form.as_str()), value);
    }

    #[test]
    fn near_decimals_have_the_same_form_exactly_if_they_are_equal(
        digits in "[0-9]{1,22}", near in "[0-2]{1,3}", exponents in any::<[i8; 2]>(), seeds in any::<[u64; 2]>(),
    ) {
        let [left, right] = exponents.map(|exponent| i32::from(exponent) % 4);
        let one = Decimal { negative: false, digits: format!("{digits}{near}"), exponent: left };
        let other = Decimal { negative: false, digits: format!("{digits}000"), exponent: right };
        let forms = (canonical(&one.spell(&mut Choices(seeds[0]))), canonical(&other.spell(&mut Choices(seeds[1]))));
        prop_assert_eq!(forms.0 == forms.1, one == other);
    }

    #[test]
    fn where_doubles_print_back_the_form_is_that_of_rfc_8785(value in value(decimal_of_a_double()), seed in any::<u64>()) {
        let text = spell(&value, &mut Choices(seed));
        let expected = serde_json_canonicalizer::pipe(&text).expect("the other implementation takes it");
        prop_assert_eq!(canonical(&text), Ok(expected));
    }

    #[test]
    fn a_double_has_the_form_of_rfc_8785(bits in any::<u64>(), seed in any::<u64>()) {
        let double = f64::from_bits(bits);
        prop_assume!(double.is_finite());
        // Not from `{:e}`: of two shortest forms equally near to the double, Rust takes
        // the upper, ECMA-262 the even one.
        let expected = serde_json_canonicalizer::to_string(&double).expect("the double is finite");
        prop_assert_eq!(canonical(&read_number(&expected).spell(&mut Choices(seed))), Ok(expected));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = canonicalize(&bytes);
    }

    #[test]
    fn serde_json_accepts_the_same_near_json(
        text in r#"([\[\]{},:0-9eE.+\- "\\]|"a":|"b":|"\\u00|\\ud83d|\\ude00|null|true|false|é|\n){0,12}"#,
    ) {
        let form = canonicalize(text.as_bytes());
        match form {
            Ok(form) => {
                prop_assert!(is_json(&text));
                prop_assert_eq!(canonicalize(&form), Ok(Cow::Borrowed(&*form)));
            }
            Err(CanonicalizeError::Syntax) => prop_assert!(!is_json(&text), "{} was refused", text),
            Err(_) => {}
        }
    }

    #[test]
    fn a_changed_byte_never_makes_it_panic(value in value(decimal()), seed in any::<u64>(), at in any::<usize>(), byte in any::<u8>()) {
        let mut text = spell(&value, &mut Choices(seed)).into_bytes();
        let at = at % text.len();
        text[at] = byte;
        let _ = canonicalize(&text);
        let _ = canonicalize(&text[..at]);
    }

    #[test]
    fn a_selection_leaves_a_canonical_text_that_depends_on_the_value_alone(
        value in value(decimal()), seeds in any::<[u64; 2]>(),
        include in prop::collection::vec("(/([ab]{0,2}|[0-3]|\\*)){1,3}", 0..3),
        exclude in prop::collection::vec("(/([ab]{0,2}|[0-3]|\\*)){1,3}", 0..3),
    ) {
        let pointers = |texts: &[String]| texts.iter().map(|text| Pointer::parse(text).expect("a pointer")).collect();
        let selection = Selection { include: pointers(&include), exclude: pointers(&exclude) };
        let [one, other] = seeds.map(|seed| {
            let text = spell(&value, &mut Choices(seed));
            canonicalize_selected(text.as_bytes(), &selection).expect("canonicalisable").into_owned()
        });
        prop_assert_eq!(&one, &other);
        prop_assert!(one.is_empty() || canonicalize(&one) == Ok(Cow::Borrowed(&*one)));
        let expected = if include.is_empty() { Some(value.clone()) } else { kept(&value, &segments(&include)) };
        let expected = expected.map(|kept| removed(kept, &segments(&exclude)));
        prop_assert_eq!((!one.is_empty()).then(|| read(&mut std::str::from_utf8(&one).expect("UTF-8"))), expected);
    }

    #[test]
    fn a_pointer_finds_the_value_at_its_place(
        around in value(decimal()), name in name(), text in ".{0,12}", seed in any::<u64>(),
    ) {
        let held = JsonTree::Array(vec![around, JsonTree::String(text.clone())]);
        let value = JsonTree::Object(BTreeMap::from([(name.encode_utf16().collect(), held)]));
        prop_assume!(name != "*");
        let pointer = format!("/{}/1", name.replace('~', "~0").replace('/', "~1"));
        let pointer = Pointer::parse(&pointer).expect("a pointer");
        let found = value_at(spell(&value, &mut Choices(seed)).as_bytes(), &pointer);
        prop_assert_eq!(found, Ok(Some(ReferencedValue::String(text))));
    }
}

/// Whether serde_json accepts the text, in its mode without limits for numbers.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Parses a text that is known to be canonical.
fn read(rest: &mut &str) -> JsonTree {
    match rest.as_bytes()[0] {
        b'[' => {
            let mut elements = Vec::new();
            *rest = &rest[1..];
            while !rest.starts_with(']') {
                elements.push(read(rest));
                *rest = rest.strip_prefix(',').unwrap_or(rest);
            }
            *rest = &rest[1..];
            JsonTree::Array(elements)
        }
        b'{' => {
            let mut members = BTreeMap::new();
            *rest = &rest[1..];
            while !rest.starts_with('}') {
                let JsonTree::String(name) = read(rest) else { panic!("a name is a string") };
                *rest = &rest[1..];
                assert_eq!(members.insert(name.encode_utf16().collect(), read(rest)), None, "a name stands twice");
                *rest = rest.strip_prefix(',').unwrap_or(rest);
            }
            *rest = &rest[1..];
            JsonTree::Object(members)
        }
        _ => {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
            values.next().expect("a value").expect("of JSON");
            let (raw, after) = rest.split_at(values.byte_offset());
            *rest = after;
            match raw.as_bytes()[0] {
                b'"' => JsonTree::String(serde_json::from_str(raw).expect("a string")),
                b'n' => JsonTree::Word("null"),
                b't' => JsonTree::Word("true"),
                b'f' => JsonTree::Word("false"),
                _ => JsonTree::Number(read_number(raw)),
            }
        }
    }
}

fn read_number(raw: &str) -> Decimal {
    let (mantissa, exponent) = raw.split_once('e').unwrap_or((raw, "0"));
    let exponent: i32 = exponent.parse().expect("a small exponent");
    let fraction = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    Decimal {
        negative: raw.starts_with('-'),
        digits: mantissa.replace(['-', '.'], ""),
        exponent: exponent - i32::try_from(fraction).expect("few digits"),
    }
}

fn segments(pointers: &[String]) -> Vec<Vec<&str>> {
    pointers.iter().map(|pointer| pointer[1..].split('/').collect()).collect()
}

fn into<'p>(paths: &[Vec<&'p str>], step: &str) -> Vec<Vec<&'p str>> {
    paths.iter().filter(|path| path[0] == "*" || path[0] == step).map(|path| path[1..].to_vec()).collect()
}

/// Returns the part of `value` at `paths`, none of which ends at it.
fn kept(value: &JsonTree, paths: &[Vec<&str>]) -> Option<JsonTree> {
    let keep = |child: &JsonTree, step: &str| match into(paths, step) {
        inner if inner.iter().any(Vec::is_empty) => Some(child.clone()),
        inner => kept(child, &inner),
    };
    match value {
        JsonTree::Array(elements) => {
            let elements: Vec<_> =
                elements.iter().enumerate().map(|(at, element)| keep(element, &at.to_string())).collect();
            let last = elements.iter().rposition(Option::is_some)?;
            let elements = elements.into_iter().take(last + 1);
            Some(JsonTree::Array(elements.map(|element| element.unwrap_or(JsonTree::Word("null"))).collect()))
        }
        JsonTree::Object(members) => {
            let members: BTreeMap<_, _> = members
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), keep(value, &String::from_utf16_lossy(name))?)))
                .collect();
            (!members.is_empty()).then_some(JsonTree::Object(members))
        }
        _ => None,
    }
}

/// Returns `value` without its parts at `paths`, none of which ends at it.
fn removed(value: JsonTree, paths: &[Vec<&str>]) -> JsonTree {
    let remove = |child: JsonTree, step: &str| match into(paths, step) {
        inner if inner.iter().any(Vec::is_empty) => None,
        inner => Some(removed(child, &inner)),
    };
    match value {
        JsonTree::Array(elements) => {
            let elements = elements.into_iter().enumerate();
            let elements = elements.map(|(at, element)| remove(element, &at.to_string()));
            JsonTree::Array(elements.map(|element| element.unwrap_or(JsonTree::Word("null"))).collect())
        }
        JsonTree::Object(members) => {
            let members = members.into_iter();
            let members = members.filter_map(|(name, value)| {
                let value = remove(value, &String::from_utf16_lossy(&name))?;
                Some((name, value))
            });
            JsonTree::Object(members.collect())
        }
        other => other,
    }
}

/// Returns the path of a vector file, if this machine has it: the vectors are not part of the repository.
fn vectors(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors").join(name);
    if !path.exists() {
        eprintln!("skipped: vectors not present at {}", path.display());
        return None;
    }
    Some(path)
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_published_vectors_of_rfc_8785_are_met() {
    let Some(vectors) = vectors("jcs") else { return };
    let inputs = std::fs::read_dir(vectors.join("input")).expect("the inputs are listed");
    let mut files = 0;
    for input in inputs.map(|entry| entry.expect("an entry is read").path()) {
        let name = input.file_name().expect("a file has a name");
        // RFC 8785 prints the double nearest to this number; here a number keeps its digits.
        let output = text_of(&vectors.join("output").join(name)).replace("333333333.3333333,", "333333333.33333329,");
        assert_eq!(canonical(&text_of(&input)).as_deref(), Ok(output.trim_end()), "{}", input.display());
        files += 1;
    }
    assert!(files > 0, "there are inputs");

    let rows: serde_json::Value =
        serde_json::from_str(&text_of(&vectors.join("rfc8785-appendix-b.json"))).expect("appendix B is JSON");
    let rows = rows.as_array().expect("of rows").iter().filter(|row| row["must_fail"] == false);
    let rows = rows.map(|row| (row["ieee754_hex"].as_str().expect("hex"), row["json"].as_str().expect("text")));
    let lines = text_of(&vectors.join("es6-numbers-10000.txt"));
    let lines = lines.lines().map(|line| line.split_once(',').expect("hex and text"));
    for (bits, expected) in rows.chain(lines) {
        let bits = u64::from_str_radix(bits, 16).expect("the bits are hex");
        assert_eq!(expected.parse(), Ok(f64::from_bits(bits)), "the vector is of its double");
        assert_eq!(canonical(expected).as_deref(), Ok(expected), "the double {bits:x}");
        let other = read_number(expected).spell(&mut Choices(bits));
        assert_eq!(canonical(&other).as_deref(), Ok(expected), "{other}");
    }
}

#[test]
fn the_fingerprint_vectors_are_met() {
    let Some(path) = vectors("oncegate/fingerprint-json.json") else { return };
    let vectors: serde_json::Value = serde_json::from_str(&text_of(&path)).expect("the vectors are JSON");
    // A text without a canonical form is compared by its raw bytes. Raw bytes cannot equal a canonical form: that is
    // its own canonical form.
    let form = |text: &str| canonical(text).map_err(|_| text.to_owned());
    for case in vectors["cases"].as_array().expect("cases are listed") {
        let name = &case["name"];
        let Some(a) = case["a"].as_str() else { continue };
        if let Some(expected) = case["a_canonical"].as_str() {
            assert_eq!(canonical(a).as_deref(), Ok(expected), "{name}");
        }
        if case["canonicalisable"] == false {
            assert!(canonical(a).is_err(), "{name}");
        }
        let Some(b) = case["b"].as_str() else { continue };
        if let Some(expected) = case["b_canonical"].as_str() {
            assert_eq!(canonical(b).as_deref(), Ok(expected), "{name}");
        }
        assert_eq!(Some(form(a) == form(b)), case["fingerprint_equal"].as_bool(), "{name}");
    }
}
