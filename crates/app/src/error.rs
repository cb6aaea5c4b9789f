//! From the engine's errors to what a person reads: one sentence with the next step, the chain of causes folded away.

use crate::fit::gb;
use crate::history::HistoryError;
use crate::settings::SettingsError;
use foretoken_engine::EngineError;
use foretoken_engine::text::TextError;
use foretoken_library::LibraryError;
use foretoken_protocol::{ErrorCode, WireError};
use std::error::Error;

pub fn error(code: ErrorCode, message: impl Into<String>) -> WireError {
    WireError { code, message: message.into(), detail: String::new() }
}

pub(crate) fn chain(e: &dyn Error) -> String {
    let mut out = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !out.ends_with(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        source = cause.source();
    }
    out
}

pub fn from_engine(e: &EngineError) -> WireError {
    use EngineError as E;
    use ErrorCode as C;
    let (code, message) = match e {
        E::FolderMissing { folder } => (C::NotFound, format!("There is no folder {}. Check the path, or choose the model again.", folder.display())),
        E::FileMissing { file } => (C::NotFound, format!("{} is missing. Download the model again, or choose another folder.", file.display())),
        E::ShardMissing { shard, .. } => {
            (C::NotFound, format!("The index names {shard}, which is not in the folder. Download that file again."))
        }
        E::Corrupt { file, why } => (C::Corrupt, format!("{} cannot be used: {why}. Download the file again.", file.display())),
        E::MissingTensor { name, .. } => {
            (C::MissingTensor, format!("The model is incomplete: the tensor {name} is missing. Download the model again."))
        }
        E::ShapeMismatch { name, want, got } => (
            C::ShapeMismatch,
            format!("The tensor {name} should have the shape {want:?} and has {got:?}. The configuration and the weights do not belong together: download both again."),
        ),
        E::UnsupportedModel { model_type } if model_type.is_empty() => {
            (C::Unsupported, "The configuration names no model type. Choose a folder with a language model.".to_owned())
        }
        E::UnsupportedModel { model_type } => {
            (C::Unsupported, format!("Foretoken cannot run models of type “{model_type}” yet. Choose another model."))
        }
        E::UnsupportedConfig { key, value } => {
            (C::Unsupported, format!("This model uses a setting Foretoken cannot run yet ({key} = {value}). Choose another version of it."))
        }
        E::UnsupportedFormat { name, format } => {
            (C::Unsupported, format!("The tensor {name} is stored as {format}, which Foretoken cannot read yet. Choose another version of the model."))
        }
        E::HeadIncomplete { missing } => (
            C::MissingTensor,
            format!("The MTP head is incomplete ({} missing). Download the head again, or use a version without one.", missing.join(", ")),
        ),
        E::HeadMismatch { key, head, trunk } => (
            C::ShapeMismatch,
            format!("The MTP head does not fit this model: its {key} is {head}, the model's is {trunk}. Choose a head made for this model."),
        ),
        E::ContextFull { prompt, context } => (
            C::ContextFull,
            format!("This conversation has {prompt} tokens and the model holds {context}. Start a new chat, or shorten the message."),
        ),
        E::EmptyPrompt => (C::InvalidOption, "There is nothing to answer. Write a message first.".to_owned()),
        E::TokenOutOfRange { id, vocab } => {
            (C::InvalidOption, format!("The token {id} is outside this model's vocabulary of {vocab}. Use ids of this model's tokenizer."))
        }
        E::InvalidOption { name, value, allowed } => {
            (C::InvalidOption, format!("The {name} is {value} and must be {allowed}. Change it and try again."))
        }
        E::NotEnoughMemory { need, available } => (
            C::OutOfMemory,
            format!("This model needs {} and {} are free. Close other programs, choose a smaller model, or load it anyway.", gb(*need), gb(*available)),
        ),
        E::DiskFull { folder, need, available } => (
            C::Disk,
            format!("{} needs {} and the disk has {} free. Free some space, or name a folder on another disk.", folder.display(), gb(*need), gb(*available)),
        ),
        E::NotFinite => (
            C::Internal,
            "The model computed numbers that are not finite. Its weights may be damaged: download it again.".to_owned(),
        ),
        E::Text(e) => text(e),
        E::Io { path, .. } => (C::Disk, format!("{} cannot be read or written. Check the disk and the permissions.", path.display())),
        E::Gpu(_) => (C::Internal, "The GPU failed. Load the model again; if it happens again, start Foretoken without FORETOKEN_METAL and report the details.".to_owned()),
        E::Device(_) => (C::Internal, "The computation failed. Load the model again; if it happens again, report the details.".to_owned()),
    };
    WireError { code, message, detail: chain(e) }
}

fn text(e: &TextError) -> (ErrorCode, String) {
    use TextError as T;
    match e {
        T::TokenizerMissing { .. } => (
            ErrorCode::NotFound,
            "The model's tokenizer.json is missing. Download the model again.".to_owned(),
        ),
        T::TemplateMissing => (
            ErrorCode::Template,
            "This model has no chat template, so it cannot chat. Choose an instruct version of it."
                .to_owned(),
        ),
        T::TemplateSyntax { line, .. } | T::TemplateFailed { line, .. } => (
            ErrorCode::Template,
            format!(
                "This model's chat template failed in line {line}. Download the model again, or choose another version."
            ),
        ),
        T::TemplateRefused { why } => (
            ErrorCode::Template,
            format!(
                "This model's chat template refuses the conversation: {why}. Start a new chat."
            ),
        ),
        T::TemplateCorrupt { .. } => (
            ErrorCode::Template,
            "This model's chat template cannot be read. Download the model again.".to_owned(),
        ),
        T::Io { file, .. } => (
            ErrorCode::Disk,
            format!("{} cannot be read. Check the disk and the permissions.", file.display()),
        ),
        _ => (
            ErrorCode::Corrupt,
            "The model's tokenizer or configuration cannot be read. Download the model again."
                .to_owned(),
        ),
    }
}

pub(crate) fn from_library(e: &LibraryError) -> WireError {
    let message = match e {
        LibraryError::NoStarter => {
            "The starter model is not here. Run ./dev starter, or install the app again.".to_owned()
        }
        LibraryError::NoFolder { folder } => {
            format!(
                "There is no folder {}. Check the path, or choose the model again.",
                folder.display()
            )
        }
        LibraryError::UnknownName { name } => {
            format!(
                "There is no model named “{name}” on this machine. Give a folder, or the name of a model you have."
            )
        }
    };
    WireError { code: ErrorCode::NotFound, message, detail: chain(e) }
}

pub(crate) fn from_history(e: &HistoryError) -> WireError {
    let (code, message) = match e {
        HistoryError::NoSuchChat { .. } | HistoryError::NoSuchMessage { .. } => (
            ErrorCode::NotFound,
            "This chat or message does not exist any more. Choose another one.",
        ),
        HistoryError::NewerVersion { .. } => (
            ErrorCode::Disk,
            "The chats were written by a newer version of Foretoken. Install that version again; nothing was changed.",
        ),
        HistoryError::Busy(_) => {
            (ErrorCode::Disk, "The chats are in use by another program. Close it and try again.")
        }
        _ => (
            ErrorCode::Disk,
            "The chats cannot be read or saved. Check the free space and the permissions of the data folder.",
        ),
    };
    WireError { code, message: message.to_owned(), detail: chain(e) }
}

pub(crate) fn from_settings(e: &SettingsError) -> WireError {
    let message = "The settings cannot be saved. Check the free space and the permissions of the data folder.";
    WireError { code: ErrorCode::Disk, message: message.to_owned(), detail: chain(e) }
}
