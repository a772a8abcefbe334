import { dialog } from "../state/dialogs";
import { CreateDialog } from "./CreateDialog";
import { DeleteDialog } from "./DeleteDialog";
import { DeleteUserDialog } from "./DeleteUserDialog";
import { HelpDialog } from "./HelpDialog";
import { RecoverDialog } from "./RecoverDialog";
import { RestoreDialog } from "./RestoreDialog";
import { RevokeTokenDialog } from "./RevokeTokenDialog";
import { SetPasswordDialog } from "./SetPasswordDialog";

export function DialogHost() {
  const shown = dialog.value;
  switch (shown?.kind) {
    case undefined:
      return null;
    case "create":
      return <CreateDialog />;
    case "help":
      return <HelpDialog />;
    case "delete":
      return <DeleteDialog workspace={shown.workspace} onDone={shown.onDone} />;
    case "recover":
      return <RecoverDialog workspace={shown.workspace} onDone={shown.onDone} />;
    case "restore":
      return <RestoreDialog workspace={shown.workspace} archive={shown.archive} />;
    case "set-password":
      return <SetPasswordDialog user={shown.user} />;
    case "revoke-token":
      return <RevokeTokenDialog accountId={shown.accountId} token={shown.token} onDone={shown.onDone} />;
    case "delete-user":
      return <DeleteUserDialog user={shown.user} onDone={shown.onDone} />;
  }
}
