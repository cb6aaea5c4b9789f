//! Writes `ui/src/backend/types.gen.ts` (`./dev bindings`), and fails when the committed file is stale.

use crate::*;
use ts_rs::{Config, TS};

fn export<T: TS>(out: &mut String, cfg: &Config) {
    out.push_str("export ");
    out.push_str(&T::decl(cfg));
    out.push_str("\n\n");
}

macro_rules! export_all {
    ($($t:ty),* $(,)?) => {{
        let cfg = Config::default();
        let mut out = String::new();
        $(export::<$t>(&mut out, &cfg);)*
        out
    }};
}

fn generated() -> String {
    let mut out =
        String::from("// Made from crates/protocol by `./dev bindings`. Do not edit.\n\n");
    out += &export_all!(
        ErrorCode,
        WireError,
        DraftMode,
        DraftRule,
        Sampling,
        GenerationOptions,
        DepthCount,
        PhaseMs,
        DraftingState,
        Drafting,
        LiveStats,
        ReplyStats,
        Role,
        FinishReason,
        Message,
        ChatSummary,
        Chat,
        ChatRef,
        RenameChat,
        Search,
        SearchHit,
        SendMessage,
        RetryMessage,
        OpenLink,
        ChatEvent,
        ModelSource,
        ModelEntry,
        HeadInfo,
        ModuleQuant,
        MemoryUse,
        NormConvention,
        NormStorage,
        LoadMeasure,
        InspectReport,
        LoadedModel,
        LoadModel,
        AddFolder,
        SetModelHead,
        LoadEvent,
        OfferedHead,
        ModelOffer,
        Machine,
        Shelf,
        TokenPlace,
        TokenState,
        SetToken,
        HubName,
        HubHead,
        HubModel,
        FitRequest,
        Fit,
        StartDownload,
        DownloadRef,
        DownloadState,
        ModelDownload,
        DownloadEvent,
        ModelRef,
        DeletePlan,
        CheckReport,
        CheckEvent,
        Theme,
        Settings,
        Notice,
        AppInfo,
    );
    out.push_str("/** Every command: what it takes, what it answers, what it streams. */\nexport interface Commands {\n");
    for c in COMMANDS {
        let stream = c.stream.unwrap_or("never");
        out += &format!(
            "  {}: {{ req: {}; res: {}; event: {} }};\n",
            c.name, c.request, c.response, stream
        );
    }
    out.push_str("}\n");
    out
}

#[test]
fn typescript_is_fresh() {
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/src/backend/types.gen.ts");
    let want = generated();
    if std::env::var_os("UPDATE_BINDINGS").is_some() {
        std::fs::create_dir_all(file.parent().expect("has a folder")).expect("writable");
        std::fs::write(&file, &want).expect("writable");
    }
    let have = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(have == want, "types.gen.ts is stale: run ./dev bindings and commit it");
}
