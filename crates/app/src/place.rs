//! From the names a person gives to folders: the model's, and that of a head from elsewhere.

use crate::error::{error, from_engine, from_library};
use crate::loaded::{Activations, ModelPlace};
use foretoken_engine::EngineError;
use foretoken_engine::models::has_head;
use foretoken_library::Library;
use foretoken_protocol::{ErrorCode, WireError};
use std::path::PathBuf;

/// Where a model lies, and the folder its head comes from when that is another; for a chat, hence with int8 activations.
pub fn place(library: &Library, id: String, head: Option<&str>) -> Result<ModelPlace, WireError> {
    let folder = library.resolve(&id).map_err(|e| from_library(&e))?;
    let head = head.map(|head| head_folder(library, head)).transpose()?;
    Ok(ModelPlace { id, folder, head, activations: Activations::Int8, anyway: false })
}

fn head_folder(library: &Library, head: &str) -> Result<PathBuf, WireError> {
    library.resolve(head).map_err(|e| WireError {
        message: format!(
            "The MTP head should come from {head}, which is not on this machine. Choose another folder for it, or use the model without."
        ),
        ..from_library(&e)
    })
}

/// Refuses what is not there or holds no head. Names only: a head can be of any size.
pub fn check_head(library: &Library, head: &str) -> Result<(), WireError> {
    let folder = head_folder(library, head)?;
    match has_head(&folder) {
        Ok(true) => Ok(()),
        Ok(false) => Err(error(
            ErrorCode::NotFound,
            format!(
                "There is no MTP head in {}. Choose a folder with one, or use the model without.",
                folder.display()
            ),
        )),
        // A folder of other files is no damaged model, only the wrong folder.
        Err(e @ EngineError::FileMissing { .. }) => Err(WireError {
            message: format!(
                "{} holds no model, so there is no MTP head to take. Choose a folder with config.json and the head's safetensors file.",
                folder.display()
            ),
            ..from_engine(&e)
        }),
        Err(e) => Err(from_engine(&e)),
    }
}
