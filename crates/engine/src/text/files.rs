//! Reading the small files beside a checkpoint, with a limit on their size.

use super::TextError;
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Far above any published `config.json` or `tokenizer_config.json`, in bytes.
pub(super) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Bytes of a file; `None` = there is no such file. `corrupt` names the error for one that is too large.
pub(super) fn read_limited(
    file: &Path,
    max_bytes: u64,
    corrupt: impl Fn(String) -> TextError,
) -> Result<Option<Vec<u8>>, TextError> {
    let open = match File::open(file) {
        Ok(open) => open,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => return Err(TextError::io(file, e)),
    };
    let mut bytes = Vec::new();
    open.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|e| TextError::io(file, e))?;
    if bytes.len() as u64 > max_bytes {
        return Err(corrupt(format!("larger than {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

/// A JSON object; `None` = there is no such file. `corrupt` names the error for what is not one.
pub(super) fn read_object(
    file: &Path,
    corrupt: impl Fn(String) -> TextError,
) -> Result<Option<serde_json::Map<String, Value>>, TextError> {
    let Some(bytes) = read_limited(file, MAX_CONFIG_BYTES, &corrupt)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(_) => Err(corrupt("not a json object".into())),
        Err(e) => Err(corrupt(e.to_string())),
    }
}
