import { messages } from "../i18n";
import type { Role } from "../types";

interface Props {
  id?: string;
  "aria-label"?: string;
  value: Role;
  disabled?: boolean;
  onChange: (role: Role) => void;
}

export function RoleSelect({ onChange, ...rest }: Props) {
  const text = messages.value.roles;
  return (
    <select {...rest} onChange={(event) => onChange(event.currentTarget.value as Role)}>
      <option value="user">{text.user}</option>
      <option value="admin">{text.admin}</option>
    </select>
  );
}
