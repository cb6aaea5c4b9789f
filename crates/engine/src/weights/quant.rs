use crate::{EngineError, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Bits per code and codes per scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    pub bits: usize,
    pub group: usize,
}

/// `quantization` of `config.json`: a default and exceptions by module path (`reference/mlx_quantization.md` 2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantTable {
    default: Option<Packing>,
    /// `None` = stored unquantised although the default says otherwise.
    modules: BTreeMap<String, Option<Packing>>,
}

impl QuantTable {
    pub fn from_config(config: &Value) -> Result<Self> {
        let table = match (config.get("quantization"), config.get("quantization_config")) {
            (Some(Value::Object(table)), _) => table,
            (_, Some(Value::Object(other))) => {
                // MLX names no method; whoever does packs otherwise (`reference/mlx_quantization.md` 2).
                if let Some(method) = other.get("quant_method").and_then(Value::as_str) {
                    return Err(unsupported("quantization_config.quant_method", method));
                }
                other
            }
            _ => return Ok(Self::default()),
        };
        let mut out = Self { default: packing("quantization", table)?, modules: BTreeMap::new() };
        for (key, value) in table {
            match value {
                Value::Object(module) => {
                    out.modules.insert(key.clone(), packing(key, module)?);
                }
                Value::Bool(false) => {
                    out.modules.insert(key.clone(), None);
                }
                // `true` and the scalars of the default itself.
                _ => {}
            }
        }
        Ok(out)
    }

    /// What the table says of a module: outer `None` = nothing, inner `None` = not quantised.
    pub fn for_module(&self, path: &str) -> Option<Option<Packing>> {
        self.modules.get(path).copied()
    }

    pub fn default_packing(&self) -> Option<Packing> {
        self.default
    }
}

fn unsupported(key: &str, value: &str) -> EngineError {
    EngineError::UnsupportedConfig { key: key.to_owned(), value: value.to_owned() }
}

fn packing(path: &str, table: &serde_json::Map<String, Value>) -> Result<Option<Packing>> {
    // A missing mode is an older pack: affine.
    match table.get("mode").map(|mode| mode.as_str().unwrap_or("unreadable")) {
        None | Some("affine") => {}
        Some(mode) => return Err(unsupported(&format!("{path}.mode"), mode)),
    }
    let number = |key: &str| table.get(key).and_then(Value::as_u64).map(|n| n as usize);
    Ok(number("bits").zip(number("group_size")).map(|(bits, group)| Packing { bits, group }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_exceptions_and_foreign_formats() {
        let table = QuantTable::from_config(&json!({"quantization": {"bits": 4, "group_size": 64,
            "a.gate": {"bits": 8, "group_size": 32}, "a.up": false, "a.down": true}}))
        .expect("a plain table");
        assert_eq!(table.default_packing(), Some(Packing { bits: 4, group: 64 }));
        assert_eq!(table.for_module("a.gate"), Some(Some(Packing { bits: 8, group: 32 })));
        assert_eq!(table.for_module("a.up"), Some(None));
        assert_eq!(table.for_module("a.down"), None);
        assert_eq!(QuantTable::from_config(&json!({})).expect("none"), QuantTable::default());
        for bad in [
            json!({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}),
            json!({"quantization_config": {"quant_method": "awq"}}),
        ] {
            assert!(
                matches!(QuantTable::from_config(&bad), Err(EngineError::UnsupportedConfig { .. })),
                "{bad}"
            );
        }
    }
}
