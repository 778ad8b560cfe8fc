// SPDX-License-Identifier: Apache-2.0
// What a C++ package does with the interfaces: asks near a place, reads the goal of the answer, and asks for the type
// support of messages and services.

#include <iostream>

#include "geometry_msgs/msg/pose_stamped.hpp"
#include "ros_kvstream/msg/kv_stats.hpp"
#include "ros_kvstream/srv/query.hpp"
#include "rosidl_typesupport_cpp/message_type_support.hpp"
#include "rosidl_typesupport_cpp/service_type_support.hpp"

using Query = ros_kvstream::srv::Query;

// Answers as the node does where something was seen at the place of the question.
Query::Response answer(const Query::Request & request)
{
  Query::Response response;
  response.success = true;
  response.evidence.resize(2);
  response.evidence[0].has_pose = true;
  response.evidence[0].base_pose.header.frame_id = request.near.header.frame_id;
  response.evidence[0].base_pose.pose.position = request.near.point;
  response.has_goal = request.radius > 0.0;
  response.goal = response.evidence[0].base_pose;
  response.memory.drop_causes = {"queue"};
  response.memory.drop_counts = {3};
  return response;
}

int main()
{
  Query::Request request;
  request.question = "Where did you last see the red cone?";
  request.near.header.frame_id = "map";
  request.near.point.x = 1.5;
  request.radius = 2.0;

  const Query::Response response = answer(request);
  if (!response.has_goal) {
    return 1;
  }
  const geometry_msgs::msg::PoseStamped goal = response.goal;  // what NavigateToPose takes

  using rosidl_typesupport_cpp::get_message_type_support_handle;
  using rosidl_typesupport_cpp::get_service_type_support_handle;
  const bool message_known = get_message_type_support_handle<ros_kvstream::msg::KvStats>() != nullptr;
  const bool service_known = get_service_type_support_handle<Query>() != nullptr;

  std::cout << response.evidence.size() << ' ' << response.memory.drop_counts.at(0) << ' ' <<
    goal.header.frame_id << ' ' << goal.pose.position.x << ' ' << goal.pose.orientation.w << ' ' <<
    message_known << ' ' << service_known << std::endl;
  return message_known && service_known ? 0 : 1;
}
