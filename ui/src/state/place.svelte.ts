export type View = "chat" | "models" | "settings";

/** Where the person is in the window, and how much room there is. */
export class Place {
  view = $state<View>("chat");
  platform = $state("linux");
  version = $state("");
  /** The sidebar, where it is a drawer over the page. */
  drawerOpen = $state(false);
  /** The live panel, where it is a drawer over the page. */
  panelDrawerOpen = $state(false);
  wide = $state(true);
  roomForSidebar = $state(true);

  /** The model whose field for a head has to be found, when its card is there. */
  headWanted = $state<string | null>(null);

  goToHead(modelId: string): void {
    this.headWanted = modelId;
    this.go("models");
  }

  /** The field of the access token has to be found, when it is there. */
  tokenWanted = $state(false);

  goToToken(): void {
    this.tokenWanted = true;
    this.go("settings");
  }

  /** The computer by the name its owner has for it. */
  get here(): string {
    return this.platform === "macos" ? "this Mac" : "this computer";
  }

  go(view: View): void {
    this.view = view;
    this.drawerOpen = false;
  }

  /** Follows the width of the window. In em, so that large text counts as little room. */
  watch(): () => void {
    const wide = window.matchMedia("(min-width: 56.25em)");
    const sidebar = window.matchMedia("(min-width: 43.75em)");
    const update = () => {
      this.wide = wide.matches;
      this.roomForSidebar = sidebar.matches;
      if (wide.matches) this.panelDrawerOpen = false;
      if (sidebar.matches) this.drawerOpen = false;
    };
    update();
    wide.addEventListener("change", update);
    sidebar.addEventListener("change", update);
    return () => {
      wide.removeEventListener("change", update);
      sidebar.removeEventListener("change", update);
    };
  }
}
