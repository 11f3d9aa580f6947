//! Scalars of TOML as JSON has them.

use serde_json::{Number, Value};
use toml::de::DeValue;

/// A number or a boolean; `None` for a number that JSON does not have, and for every other value.
pub(super) fn to_json(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::Boolean(value) => Some(Value::from(*value)),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::from),
        DeValue::Float(number) => number.as_str().parse().ok().and_then(Number::from_f64).map(Value::Number),
        _ => None,
    }
}
